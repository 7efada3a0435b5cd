"""Checks a new device: run it first on a GPU, a TPU or another CPU.

Command: python -m experiments.accelerator --minutes=8
         python -m experiments.accelerator --tiny
Shows: a table in Markdown of the device, whether decoding is correct on it, and
how fast it is compared with its memory and with the forward passes alone.
--workdir receives figures.jsonl, a line for each row as it is measured.

Phases, the most important first: correctness (the device; greedy strict
decoding equals the verifier; samples follow their enumerated laws), costs (time
to read 1 to 17 tokens, and of a drafter's step), loops (the loop by its forward
passes, strict decoding and token_v3 by the verifier alone, 11 leniences by one
of them), real_pair (Gemma 3 270M, if it is installed).

Each phase is a process with a share of the minutes; one that hangs loses only
what it has not measured. --phases, which can be given several times, selects
some. --tiny rehearses all on a CPU in two minutes. Nothing is downloaded.
"""

import functools
import itertools
import json
import math
import os
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from cascades import Sampler, drafters, load_model, methods, verification
from cascades.config import DecodingConfig
from cascades.models import memory
from cascades.proof import sampled
from experiments import cli, measuring, tasks
from experiments.benchmarks import answering, loops
from experiments.measuring import median
from experiments.sweeps import costs

# Each with its share of the minutes.
PHASES = {'correctness': 28, 'costs': 28, 'loops': 37, 'real_pair': 7}
_DTYPE = jnp.dtype('bfloat16')
# By name: family, width, hidden width, layers, heads, key-value heads, window.
# One vocabulary, so that all can be paired; all layers take long to compile.
_GEMMAS = {
  '270M': ('gemma3_text', 640, 2048, 18, 4, 1, 512),
  '18 layers of 1B': ('gemma3_text', 1152, 6912, 18, 4, 1, 512),
  '18 layers of 4B': ('gemma3_text', 2560, 10240, 18, 8, 4, 1024),
  '18 layers of 9B': ('gemma2', 3584, 14336, 18, 16, 8, 4096),
  'tiny 1': ('gemma3_text', 32, 64, 1, 2, 1, 16),
  'tiny 2': ('gemma3_text', 64, 128, 2, 2, 1, 16),
}
# Largest ratio of the loop's time to its floor's.
_FLOOR_BOUND = 1.1
# A gap between two logits of at most so many spacings of bfloat16 is a tie.
_TIE = 4
_GERMAN = (
  'Ein Hund läuft durch den Schnee.',
  'Zwei Kinder spielen am Strand.',
  'Ein Mann fährt mit dem Fahrrad zur Arbeit.',
  'Eine Gruppe von Menschen wartet auf den Bus.',
)
_EXAMPLE = (
  'German: Eine Katze schläft auf dem Sofa.\n'
  'English: A cat is sleeping on the sofa.\n\n'
)

# What was measured, the result, and whether it meets its bound, if it has one.
_Rows = Iterator[tuple[str, str, bool | None]]
# The measurements of a phase, those of most worth first.
_Plan = Iterator[tuple[str, Callable[[], _Rows]]]


def define_flags() -> None:
  """Defines the flags of the command."""
  flags.DEFINE_float('minutes', 8.0, 'Minutes for all phases.', 0.1, 1440)
  flags.DEFINE_string('workdir', 'runs/accelerator', 'Folder of rows.')
  flags.DEFINE_multi_enum('phases', [*PHASES], [*PHASES], 'Phases to run.')
  flags.DEFINE_bool('tiny', False, 'Rehearses the phases on tiny models.')
  flags.DEFINE_bool('measure', False, 'Measures in this process.')


def main() -> None:
  """Runs the phases, each in a process; prints the table."""
  values = flags.FLAGS
  if values.measure:
    measure(values.phases[0], values.tiny)
    return
  folder = pathlib.Path(values.workdir)
  cli.make_folder(folder)
  # Not all of the device's memory at once; and compile times are figures.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  os.environ['HF_HUB_OFFLINE'] = '1'
  if values.tiny:
    # Compiling is most of the time of a rehearsal.
    level = '--xla_backend_optimization_level=0'
    os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {level}'
  command = [sys.executable, '-m', 'experiments.accelerator', '--measure']
  os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'
  command += [f'--tiny={values.tiny}']
  command += [f'--import={name}' for name in cli.imports()]
  end, path = time.monotonic() + 60 * values.minutes, folder / 'figures.jsonl'
  path.write_bytes(b'')
  phases = {x: share for x, share in PHASES.items() if x in values.phases}
  total = sum(phases.values())
  for phase, share in phases.items():
    seconds = max(0.0, share / total * (end - time.monotonic()))
    total -= share
    cli.say(f'{phase}: at most {seconds:.0f} s')
    run_phase(phase, [*command, f'--phases={phase}'], path, seconds)
  print(measuring.table(read_rows(path)))


def read_rows(path: pathlib.Path) -> list[dict[str, str]]:
  """Returns the rows of a file, to which libraries may have printed too."""
  lines = path.read_text(encoding='utf-8', errors='replace').splitlines()
  return [json.loads(x) for x in lines if x[:10] + x[-1:] == '{"phase": }']


def run_phase(
  phase: str, command: Sequence[str], path: pathlib.Path, seconds: float
) -> None:
  """Runs a process that prints rows; adds them to a file."""
  failure = ''
  with path.open('ab') as stream:
    try:
      done = subprocess.run(
        command, stdout=stream, timeout=seconds, check=False
      )
      if done.returncode:
        failure = f'the process ended with code {done.returncode}'
    except subprocess.TimeoutExpired:
      failure = f'stopped after {seconds:.0f} s; give it more --minutes'
    if failure:
      # The process may have ended within a line.
      text = '\n' + _line(phase, 'the phase', failure, 'failed')
      stream.write(text.encode())


def _line(phase: str, name: str, result: str, met: str) -> str:
  """Returns a row as a line of JSON."""
  fields = {'phase': phase, 'measured': name, 'result': result, 'met': met}
  return f'{json.dumps(fields)}\n'


def measure(phase: str, tiny: bool) -> None:
  """Measures a phase, and prints each row at once as a line of JSON."""
  plans = dict(correctness=_correctness, costs=_costs, loops=_loops)
  for name, run in plans.get(phase, _real_pair)(tiny):
    try:
      for part, result, met in run():
        title = ', '.join(x for x in (name, part) if x)
        verdict = {True: 'yes', False: 'NO', None: ''}[met]
        print(_line(phase, title, result, verdict), end='', flush=True)
    except Exception as error:
      # XLA's errors list every allocation.
      text = f'{type(error).__name__}: {cli.one_line(error)[:300]}'
      print(_line(phase, name, text, 'failed'), end='', flush=True)
      if 'RESOURCE_EXHAUSTED' in str(error):
        # Models of earlier rows.
        _model.cache_clear()


def _correctness(tiny: bool) -> _Plan:
  """Yields facts of the device, strict decoding, and sampled laws."""
  yield 'device', functools.partial(_device, tiny)
  # A device may multiply float32 with fewer bits unless it is told not to.
  yield 'greedy, float32', lambda: _greedy(tiny, 'float32', 'highest')
  entries = list(verification.VERIFICATIONS.items())
  for name, kind in entries[: 3 if tiny else None]:
    config = verification.VerificationConfig(name + ':2' * bool(kind.window))
    law = functools.partial(_law, 2_000 if tiny else 20_000, config)
    yield f'law, {config.verification}', law
  yield 'greedy, bfloat16', lambda: _greedy(tiny, 'bfloat16', 'default')
  if jax.default_backend() != 'cpu':
    fast = functools.partial(_greedy, tiny, 'float32', 'default')
    yield "greedy, float32 in the device's precision", fast


def _device(tiny: bool) -> _Rows:
  """Yields the device, versions, and the speed of copying."""
  device = jax.local_devices()[0]
  limit = (device.memory_stats() or {}).get('bytes_limit')
  size = f', {limit / 1e9:.1f} GB' if limit else ''
  yield '', f'{jax.device_count()} x {device.device_kind}{size}', None
  versions = ', '.join(f'{k} {v}' for k, v in cli.versions().items())
  yield 'versions', f'{versions}; {platform.platform()}', None
  # In place, since an allocation would be timed too.
  copy = jax.jit(lambda x: x + 1, donate_argnums=0)
  x, seconds = jnp.ones(2**20 if tiny else 2**28, jnp.float32), []
  for _ in range(8):
    copies_s, x = measuring.timed(
      functools.reduce, lambda x, _: copy(x), range(8), x
    )
    seconds.append(copies_s)
  speed = 16 * x.nbytes / median(seconds)
  yield 'copying', f'{speed / 1e9:.0f} GB/s', None


def _greedy(tiny: bool, dtype: str, precision: str) -> _Rows:
  """Compares greedy strict decoding with the verifier alone.

  With rounded numbers nearly equal logits may be ordered differently: each
  first difference must be a near tie of the verifier's two largest logits.
  """
  verifier = load_model('tiny-verifier', dtype)
  drafter = drafters.load('tiny-drafter', dtype)
  options = dict(method='speed', lenience=0.0, temperature=0.0)
  samplers = (
    Sampler(verifier, config=DecodingConfig(gamma=0, **options)),
    Sampler(verifier, drafter, config=DecodingConfig(gamma=4, **options)),
  )
  examples = tasks.TASKS['word_problems'].load(num_examples=4 if tiny else 20)
  prompts = [example.prompt for example in examples]
  options = dict(max_new_tokens=64, return_logits=True)
  with jax.default_matmul_precision(precision):
    answers = [x.sample(prompts, **options) for x in samplers]
  gaps = [
    gap
    for pair in zip(*answers, strict=True)
    if (gap := first_gap(*pair)) is not None
  ]
  text = f'{len(prompts) - len(gaps)} of {len(prompts)} agree'
  if gaps:
    text += f'; largest gap of {max(gaps):.1f} spacings of bfloat16'
  allowed = [] if precision == 'highest' else [x for x in gaps if x <= _TIE]
  yield '', text, len(allowed) == len(gaps)


def first_gap(expected: Any, answer: Any) -> float | None:
  """Returns how clear the verifier's first choice was that an answer lacks.

  The gap is in spacings of bfloat16; None if the answers are equal.
  """
  if expected.tokens == answer.tokens:
    return None
  pairs = zip(expected.tokens, answer.tokens, strict=False)
  position = next((i for i, (x, y) in enumerate(pairs) if x != y), None)
  if position is None:
    # The shorter answer was cut, without a token that differs.
    return math.inf
  second, first = np.sort(np.asarray(expected.logits[position], float))[-2:]
  # Of bfloat16's 8 significant bits the first is not stored.
  return float((first - second) / 2.0 ** (math.frexp(first)[1] - 8))


def _law(samples: int, config: verification.VerificationConfig) -> _Rows:
  """Compares samples of the compiled loop with the enumerated law."""
  method = methods.get_method('opt')
  (check,) = sampled.check_samples(method, (0.2, 0.5), samples, [config])
  yield '', f'largest z {check.value:.1f} of {samples} samples', check.passed


@functools.cache
def _model(name: str) -> Any:
  """Makes a model of Gemma's shape with random weights, on the device."""
  family, width, hidden, layers, num_heads, kv_heads, window = _GEMMAS[name]
  is_tiny = name.startswith('tiny')
  head_dim = 16 if is_tiny else 256
  fields = dict(
    model_type=family,
    vocab_size=512 if is_tiny else 262_144,
    hidden_size=width,
    intermediate_size=hidden,
    num_hidden_layers=layers,
    num_attention_heads=num_heads,
    num_key_value_heads=kv_heads,
    head_dim=head_dim,
    query_pre_attn_scalar=head_dim,
    sliding_window=window,
  )
  return loops.random_checkpoint(fields, _DTYPE, seed=0)


def _costs(tiny: bool) -> _Plan:
  """Yields the times of passes of each shape and batch size."""
  names = ['tiny 1'] if tiny else [x for x in _GEMMAS if 'tiny' not in x]
  for batch, name in itertools.product((1, 2) if tiny else (1, 8, 64), names):
    run = functools.partial(_passes, tiny, name, batch)
    yield f'{name}, batch {batch}', run


def _passes(tiny: bool, name: str, batch: int) -> _Rows:
  """Times reading by width, and a drafter's step: a pass, and a draw."""
  checkpoint = _model(name)
  # A block of gamma 1, 2, 4, 8 and 16 has one token more.
  widths, context = ((1, 3), 12) if tiny else ((1, 2, 3, 5, 9, 17), 136)
  loops: dict[Any, measuring.TimedLoop] = {
    width: costs.forward_loop(checkpoint, width, context, rows=batch)
    for width in widths
  }
  drafter = drafters.BoundDrafter(
    drafters.ModelDrafter(checkpoint.model), checkpoint.params
  )
  gamma = 2 if tiny else 4
  step = costs.proposal_loop(
    checkpoint, drafter, gamma, drafts=1, context=context, rows=batch
  )
  # A proposal of gamma tokens has as many steps, and one that reads the last.
  loops['draft step'] = step._replace(calls=step.calls * (gamma + 1))
  times = measuring.time_in_turns(loops, 2 if tiny else 5, 0.0)
  ms = {key: 1e3 * median(x) for key, x in times.items()}
  # Each pass reads the weights, and every slot of all caches.
  cache = jax.eval_shape(
    lambda params: checkpoint.model.init_cache(params, context),
    checkpoint.params,
  )
  read = memory.num_bytes(checkpoint.params) + batch * memory.num_bytes(cache)
  text = f'reading one token {ms[1]:.3f} ms, {read / ms[1] / 1e6:.0f} GB/s'
  ratios = (f'{x}: {ms[x] / ms[1]:.2f} x' for x in loops if x != 1)
  yield '', '; '.join((text, *ratios)), None


def _loops(tiny: bool) -> _Plan:
  """Yields the loops of each pair and batch size."""
  small, medium, large, largest, *_ = _GEMMAS
  pairs = (large, small), (largest, medium)
  if tiny:
    pairs = (('tiny 2', 'tiny 1'),)
  for pair, batch in itertools.product(pairs, (2,) if tiny else (1, 8)):
    name = f'{pair[1]} drafts for {pair[0]}, batch {batch}'
    yield name, functools.partial(_loop, tiny, pair, batch)


def _loop(tiny: bool, names: tuple[str, str], batch: int) -> _Rows:
  """Times loops by their floors, by the verifier alone, and a curve.

  Random weights never agree, so that acceptance is forced.
  """
  models, leniences = [_model(name) for name in names], 11
  vocab = models[0].model.vocab_size
  prompts = list(np.random.default_rng(0).integers(300, vocab, (11, 64)))
  gamma, repeats, new_tokens = (2, 2, 12) if tiny else (4, 5, 128)
  pair = loops.Pair('random weights', *models, prompts, new_tokens, repeats)
  config = ConfigDict(dict(gamma=gamma, gammas=(gamma,), gemma=False))
  config.acceptances = config.leniences = (0.6, 0.8, 0.9)
  figures = loops.measure(config, pair, {'pair': '', 'batch': batch})
  for row in loops.tables(figures)[0]:
    rate = f', rate {row["lenience"]}' if row['lenience'] else ''
    floor = row.get('x floor')
    met = None if floor is None else floor <= _FLOOR_BOUND
    yield f'{row["arm"]}{rate}', _describe(row), met
  # Acceptance from the lowest of a curve to the highest, a row for each.
  method = loops.force_acceptance(methods.METHODS['token_v3'], True)
  runs = []
  for rows, rate in (1, 0.5), (leniences, np.linspace(0.5, 0.95, leniences)):
    run = loops.project_loop(pair, rows, method, gamma, rate, 'token_v3')
    runs.append(measuring.warm_up(run)[0])
  point, curve = (
    1e3 * median(row['decode_s']) / row['blocks']
    for row in measuring.race(runs, repeats)
  )
  text = f'{curve:.3f} ms/block, {curve / point:.2f} x one lenience'
  yield f'{leniences} leniences, a row each', text, None
  if stats := jax.local_devices()[0].memory_stats():
    yield 'peak memory', f'{stats["peak_bytes_in_use"] / 1e9:.2f} GB', None


def _describe(row: dict[str, Any]) -> str:
  """Returns the figures of a row that have values."""
  names = (
    *('ms/block', 'tokens/s', 'x alone', 'x floor'),
    *('acceptance', 'compile s'),
  )
  values = {x: row[x] for x in names if row.get(x) is not None}
  return ', '.join(f'{name} {value:.4g}' for name, value in values.items())


def _real_pair(tiny: bool) -> _Plan:
  """Yields captions that trained weights translate, if they are installed."""
  for batch in (2,) if tiny else (1, 8):
    yield f'batch {batch}', functools.partial(_translate, tiny, batch)


def _translate(tiny: bool, batch: int) -> _Rows:
  """Times the verifier alone and two methods, greedily, in turns."""
  verifier, drafter = 'gemma3-270m', 'gemma3-270m-multi30k-de-en'
  if tiny:
    verifier, drafter = 'tiny-verifier', 'tiny-drafter'
  dtype = 'float32' if jax.default_backend() == 'cpu' else 'bfloat16'
  prompts = [f'{_EXAMPLE}German: {x}\nEnglish:' for x in _GERMAN * 2][:batch]
  models = answering.Models(
    config=ConfigDict(
      dict(gamma=4, new_tokens=8 if tiny else 48, stop='' if tiny else '\n')
    ),
    dtype=dtype,
    verifier=load_model(verifier, dtype),
    drafters={None: None, drafter: drafters.load(drafter, dtype)},
    prompts=prompts,
  )
  options = (
    dict(name='alone'),
    dict(name='strict', drafter=drafter),
    dict(name='token_v2', drafter=drafter, method='token_v2', lenience=0.3),
  )
  runs = [
    answering.entrant(
      models, ConfigDict(arm), prompts, temperature=0.0, batch_size=batch
    )
    for arm in options
  ]
  key = {'part': 'problems', 'dtype': dtype, 'batch': batch}
  figures = measuring.race(runs, 2 if tiny else 5)
  for row in answering.tables([key | x for x in figures])[0]:
    yield f'{verifier}, {dtype}, {row["arm"]}', _describe(row), None


if __name__ == '__main__':
  define_flags()
  cli.run(main)
