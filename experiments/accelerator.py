"""Checks a new device: run it first on a GPU, a TPU or another CPU.

Command: python -m experiments.accelerator --minutes=8
         python -m experiments.accelerator --tiny
Shows: a table in Markdown of the device, whether decoding is correct on it, and
how fast it is compared with the forward passes alone. --workdir receives
figures.jsonl, a line for each row as it is measured.

Phases, the most important first: correctness (the device; greedy strict
decoding equals the verifier; samples follow their enumerated laws), costs
(passes that read 1 to 17 tokens), loops (the loop by its forward passes, strict
decoding and token_v3 by the verifier alone, 11 leniences by one of them),
real_pair (the same for Gemma 3 270M, if it is installed).

Each phase is a process with a share of the minutes; one that hangs loses only
what it has not measured. --phases=NAME, once or more, selects some. --tiny
rehearses all on a CPU in two minutes. Nothing is downloaded.
"""

import itertools
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from cascades import Sampler, methods, verification
from cascades.config import DecodingConfig
from cascades.proof import sampled
from configs.common import decoding, pair, shape
from experiments import cli, measuring, tasks
from experiments.benchmarks import loops

# Each second shape is a verifier, the shape before it its drafter.
_SHAPES = {
  '270M': shape('gemma3_text', 640, 2048, 18, 4, 1, 256, 2**18),
  '18 layers of 4B': shape('gemma3_text', 2560, 10240, 18, 8, 4, 256, 2**18),
  '18 layers of 1B': shape('gemma3_text', 1152, 6912, 18, 4, 1, 256, 2**18),
  '18 layers of 9B': shape('gemma2', 3584, 14336, 18, 16, 8, 256, 2**18),
}
_TINY_SHAPES = {
  'tiny 1': shape('gemma3_text', 32, 64, 1, 2, 1, 16, 512),
  'tiny 2': shape('gemma3_text', 64, 128, 2, 2, 1, 16, 512),
}
_TRAINED = 'gemma3-270m', 'gemma3-270m-multi30k-de-en'
# Largest ratio of the loop's time to its floor's.
_FLOOR_BOUND = 1.1
# Rounding may swap logits that differ by at most so many spacings of bfloat16.
_TIE = 4

# Figures by name; `met` says if they meet their bound.
_Row = dict[str, Any]
# Names of measurements, and the rows that they yield.
_Plan = Iterator[tuple[str, Iterable[_Row]]]


def main() -> None:
  """Runs the phases, each in a process; prints the table."""
  values = flags.FLAGS
  path = pathlib.Path(values.workdir, 'figures.jsonl')
  if values.measure:
    measure(values.measure, values.tiny, path)
    return
  cli.make_folder(path.parent)
  path.write_bytes(b'')
  # Not all of the device's memory at once.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  os.environ['HF_HUB_OFFLINE'] = '1'
  # Compile times are figures, but most of the time of a rehearsal.
  if values.tiny:
    os.environ['JAX_DISABLE_MOST_OPTIMIZATIONS'] = '1'
  else:
    os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'
  run_phases(values.phases, values.minutes, path)
  lines = path.read_text(encoding='utf-8').splitlines()
  print(measuring.table([json.loads(line) for line in lines]))


def run_phases(phases: list[str], minutes: float, path: pathlib.Path) -> None:
  """Runs phases in processes that write rows; writes one if a phase fails."""
  end = time.monotonic() + 60 * minutes
  shares = {x: share for x, (share, _) in PHASES.items() if x in phases}
  while shares:
    phase, total = next(iter(shares)), sum(shares.values())
    seconds = max(0.0, shares.pop(phase) / total * (end - time.monotonic()))
    cli.say(f'{phase}: at most {seconds:.0f} s')
    command = [sys.executable, *sys.orig_argv[1:], f'--measure={phase}']
    try:
      code = subprocess.call(command, stdout=sys.stderr, timeout=seconds)
    except subprocess.TimeoutExpired:
      code = f'none after {seconds:.0f} s; give it more --minutes'
    if code:
      _write(path, phase, 'the phase', {'exit code': code, 'met': False})


def measure(phase: str, tiny: bool, path: pathlib.Path) -> None:
  """Measures a phase, and writes each row at once as a line of JSON."""
  for name, rows in PHASES[phase][1](tiny):
    try:
      for row in rows:
        _write(path, phase, name, row)
    except Exception as error:
      # XLA's errors list every allocation.
      text = f'{type(error).__name__}: {cli.one_line(error)[:300]}'
      _write(path, phase, name, {'error': text, 'met': False})


def _write(path: pathlib.Path, phase: str, name: str, row: _Row) -> None:
  met = row.pop('met', None)
  fields = {'phase': phase, 'measured': name, 'result': row, 'met': met}
  with path.open('a', encoding='utf-8') as stream:
    stream.write(f'{json.dumps(fields)}\n')


def _correctness(tiny: bool) -> _Plan:
  """Plans the device's facts and comparisons with the verifier and laws."""
  facts = {'devices': jax.device_count(), 'kind': jax.devices()[0].device_kind}
  yield 'device', [facts | cli.versions() | {'on': platform.platform()}]
  num_prompts, samples = (4, 2_000) if tiny else (20, 20_000)
  method = methods.get_method('opt')
  # A device may multiply float32 with fewer bits unless it is told not to.
  yield 'greedy, float32', _greedy(num_prompts, 'float32', 'highest')
  entries = list(verification.VERIFICATIONS.items())
  for name, kind in entries[: 3 if tiny else None]:
    config = verification.VerificationConfig(name + ':2' * bool(kind.window))
    checks = sampled.check_samples(method, (0.2, 0.5), samples, [config])
    rows = ({'largest G': x.value, 'met': x.passed} for x in checks)
    yield f'law of {samples} samples, {config.verification}', rows
  yield 'greedy, bfloat16', _greedy(num_prompts, 'bfloat16', 'default')


def _greedy(num_prompts: int, dtype: str, precision: str) -> Iterator[_Row]:
  """Compares greedy strict decoding with the verifier alone."""
  examples = tasks.TASKS['word_problems'].load(num_examples=num_prompts)
  prompts, outputs = [example.prompt for example in examples], []
  for gamma in (0, 4):
    config = DecodingConfig(method='speed', gamma=gamma, temperature=0.0)
    names = 'tiny-verifier', 'tiny-drafter'
    sampler = Sampler(*names, config=config, dtype=dtype)
    with jax.default_matmul_precision(precision):
      answers = sampler.sample(prompts, max_new_tokens=64, return_logits=True)
    outputs.append(answers)
  pairs = zip(*outputs, strict=True)
  gaps = [first_gap(x, y) for x, y in pairs if x.tokens != y.tokens]
  bound = -1 if precision == 'highest' else _TIE
  yield {
    'equal': f'{num_prompts - len(gaps)} of {num_prompts}',
    'largest gap in spacings': max(gaps, default=None),
    'met': all(gap <= bound for gap in gaps),
  }


def first_gap(expected: Any, answer: Any) -> float:
  """Returns, in spacings of bfloat16, how clear the first lost choice was."""
  size = min(len(expected.tokens), len(answer.tokens))
  differs = np.not_equal(expected.tokens[:size], answer.tokens[:size])
  if not differs.any():
    # The shorter answer was cut.
    return np.inf
  logits = np.asarray(expected.logits[differs.argmax()], float)
  second, first = np.sort(logits)[-2:]
  return float((first - second) / np.spacing(first.astype(jnp.bfloat16)))


def _costs(tiny: bool) -> _Plan:
  """Plans passes of models with random weights."""
  for name, fields in (_TINY_SHAPES if tiny else _SHAPES).items():
    yield name, _passes(fields, tiny)


def _passes(fields: ConfigDict, tiny: bool) -> Iterator[_Row]:
  """Times forward passes by the number of tokens that they read."""
  model = loops.random_checkpoint(fields, 'bfloat16', seed=0)
  reader = loops.Pair('', model, None, [np.zeros(64)], 64, 5)
  # A token, and blocks of gamma 1, 2, 4, 8 and 16.
  widths, passes = (1, 3) if tiny else (1, 2, 3, 5, 9, 17), 32
  for batch in (1, 2) if tiny else (1, 8, 64):
    entrants = [loops.lower_bound(reader, batch, x - 1, passes) for x in widths]
    figures = measuring.race(entrants, reader.repeats)
    passes_s = [measuring.median(x['decode_s']) / passes for x in figures]
    token_s, ratios = passes_s[0], zip(widths, passes_s, strict=True)
    row = {f'{width} by 1': pass_s / token_s for width, pass_s in ratios}
    speed = figures[0]['bytes'] / token_s / 1e9
    yield {'batch': batch, 'token ms': 1e3 * token_s, 'GB/s': speed} | row


def _loops(tiny: bool) -> _Plan:
  """Plans loops of random weights, whose acceptance is forced, and a curve."""
  shapes = (_TINY_SHAPES if tiny else _SHAPES).items()
  pairs = [
    pair(verifier, drafter, f'{small} drafts for {large}')
    for (small, drafter), (large, verifier) in itertools.batched(shapes, 2)
  ]
  curve = tuple(np.linspace(0.5, 0.95, 11).tolist())
  return _races(pairs, tiny, dtype='bfloat16', curve=curve)


def _real_pair(tiny: bool) -> _Plan:
  """Plans the loops of a trained pair, greedily."""
  names = ('tiny-verifier', 'tiny-drafter') if tiny else _TRAINED
  prompts = [
    'German: Eine Katze schläft auf dem Sofa.\nEnglish: A cat is sleeping on'
    f' the sofa.\n\nGerman: {noun} spielt am Strand.\nEnglish:'
    for noun in ('Ein Hund', 'Ein Kind', 'Ein Mann', 'Eine Frau') * 2
  ]
  dtype = 'float32' if jax.default_backend() == 'cpu' else 'bfloat16'
  return _races([pair(*names, names[0], prompts=prompts)], tiny, dtype=dtype)


def _races(pairs: Sequence[ConfigDict], tiny: bool, **fields: Any) -> _Plan:
  """Plans races of the loops of pairs with their floors."""
  fields |= dict(pairs=pairs, gemma=False, leniences=(0.3,), prompt_tokens=64)
  fields |= dict(batch_sizes=(1, 8), gammas=(4,), new_tokens=64)
  if tiny:
    fields |= dict(batch_sizes=(2,), repeats=2, new_tokens=12)
  config = decoding(**fields)
  for key, run in loops.parts(config):
    yield f'{key["pair"]}, batch {key["batch"]}', _race(run)


def _race(run: Callable[[], list[_Row]]) -> Iterator[_Row]:
  """Runs a race; yields its table, and the memory used until then."""
  for row in loops.table(run()):
    floor = row.get('x floor')
    yield row | {'met': floor and floor <= _FLOOR_BOUND}
  if stats := jax.local_devices()[0].memory_stats():
    yield {'peak GB': stats['peak_bytes_in_use'] / 1e9}


# Each with its share of the minutes.
PHASES = {
  'correctness': (28, _correctness),
  'costs': (28, _costs),
  'loops': (37, _loops),
  'real_pair': (7, _real_pair),
}

if __name__ == '__main__':
  flags.DEFINE_float('minutes', 8.0, 'Minutes for all phases.', 0.1, 1440)
  flags.DEFINE_string('workdir', 'runs/accelerator', 'Folder of rows.')
  flags.DEFINE_multi_enum('phases', [*PHASES], [*PHASES], 'Phases to run.')
  flags.DEFINE_bool('tiny', False, 'Rehearses the phases on tiny models.')
  flags.DEFINE_enum('measure', None, [*PHASES], 'Phase to run in this process.')
  cli.run(main)
