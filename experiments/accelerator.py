"""Checks a new device: run it first on a GPU, a TPU or another CPU.

Command: python -m experiments.accelerator --minutes=8
         python -m experiments.accelerator --tiny
Shows: a table in Markdown of the device, whether decoding is correct on it, and
how fast it is compared with its memory and with the forward passes alone.
--workdir receives figures.jsonl, a line for each row as it is measured.

Phases, the most important first: correctness (the device; greedy strict
decoding equals the verifier; samples follow their enumerated laws), costs
(passes that read 1 to 17 tokens), loops (the loop by its forward passes, strict
decoding and token_v3 by the verifier alone, 11 leniences by one of them),
real_pair (the same for Gemma 3 270M, if it is installed).

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
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from cascades import (
  Sampler,
  decoding,
  drafters,
  load_model,
  methods,
  verification,
)
from cascades.config import DecodingConfig
from cascades.methods import processing
from cascades.models import memory
from cascades.proof import sampled
from experiments import cli, measuring, tasks
from experiments.benchmarks import loops
from experiments.measuring import median

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
  os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'
  os.environ['HF_HUB_OFFLINE'] = '1'
  if values.tiny:
    # Compiling is most of the time of a rehearsal.
    level = '--xla_backend_optimization_level=0'
    os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {level}'
  command = [sys.executable, '-m', 'experiments.accelerator', '--measure']
  command += [f'--import={name}' for name in cli.imports()]
  end, path = time.monotonic() + 60 * values.minutes, folder / 'figures.jsonl'
  path.write_bytes(b'')
  phases = {x: share for x, share in PHASES.items() if x in values.phases}
  total = sum(phases.values())
  for phase, share in phases.items():
    seconds = max(0.0, share / total * (end - time.monotonic()))
    total -= share
    cli.say(f'{phase}: at most {seconds:.0f} s')
    options = [f'--tiny={values.tiny}', f'--phases={phase}']
    run_phase(phase, [*command, *options], path, seconds)
  print(measuring.table(read_rows(path)))


def read_rows(path: pathlib.Path) -> list[dict[str, str]]:
  """Returns the rows of a file, to which libraries may have printed too."""
  lines = path.read_text(encoding='utf-8', errors='replace').splitlines()
  return [json.loads(x) for x in lines if x[:10] + x[-1:] == '{"phase": }']


def run_phase(
  phase: str, command: Sequence[str], path: pathlib.Path, seconds: float
) -> None:
  """Runs a process that prints rows; adds them to a file."""
  text = f'stopped after {seconds:.0f} s; give it more --minutes'
  with path.open('ab') as stream:
    try:
      subprocess.run(command, stdout=stream, timeout=seconds, check=True)
    except subprocess.SubprocessError as error:
      if isinstance(error, subprocess.CalledProcessError):
        text = f'the process ended with code {error.returncode}'
      # The process may have ended within a line.
      row = _line(phase, 'the phase', text, 'failed')
      stream.write(f'\n{row}'.encode())


def _line(phase: str, name: str, result: str, met: str) -> str:
  """Returns a row as a line of JSON."""
  fields = {'phase': phase, 'measured': name, 'result': result, 'met': met}
  return f'{json.dumps(fields)}\n'


def measure(phase: str, tiny: bool) -> None:
  """Measures a phase, and prints each row at once as a line of JSON."""
  for name, rows in _plan(phase, tiny):
    try:
      for part, result, met in rows:
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


def _plan(phase: str, tiny: bool) -> Iterator[tuple[str, _Rows]]:
  """Yields the measurements of a phase, those of most worth first."""
  small, medium, large, largest, tiny_1, tiny_2 = _GEMMAS
  if phase == 'correctness':
    yield 'device', _device(tiny)
    # A device may multiply float32 with fewer bits unless it is told not to.
    yield 'greedy, float32', _greedy(tiny, 'float32', 'highest')
    entries = list(verification.VERIFICATIONS.items())
    for name, kind in entries[: 3 if tiny else None]:
      config = verification.VerificationConfig(name + ':2' * bool(kind.window))
      law = _law(2_000 if tiny else 20_000, config)
      yield f'law, {config.verification}', law
    yield 'greedy, bfloat16', _greedy(tiny, 'bfloat16', 'default')
  elif phase == 'costs':
    names = (tiny_1,) if tiny else (small, medium, large, largest)
    for batch, name in itertools.product((1, 2) if tiny else (1, 8, 64), names):
      yield f'{name}, batch {batch}', _units(tiny, name, batch)
  elif phase == 'loops':
    pairs = ((tiny_2, tiny_1),) if tiny else ((large, small), (largest, medium))
    for pair, batch in itertools.product(pairs, (2,) if tiny else (1, 8)):
      name = f'{pair[1]} drafts for {pair[0]}, batch {batch}'
      yield name, _loop(tiny, pair, batch)
  else:
    # Captions that trained weights translate, if they are installed.
    for batch in (2,) if tiny else (1, 8):
      yield f'batch {batch}', _translate(tiny, batch)


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
  with jax.default_matmul_precision(precision):
    answers = [
      x.sample(prompts, max_new_tokens=64, return_logits=True) for x in samplers
    ]
  gaps = [
    first_gap(x, y)
    for x, y in zip(*answers, strict=True)
    if x.tokens != y.tokens
  ]
  text = f'{len(prompts) - len(gaps)} of {len(prompts)} agree'
  if gaps:
    text += f'; largest gap of {max(gaps):.1f} spacings of bfloat16'
  bound = -1 if precision == 'highest' else _TIE
  yield '', text, all(gap <= bound for gap in gaps)


def first_gap(expected: Any, answer: Any) -> float:
  """Returns, in spacings of bfloat16, how clear the first lost choice was."""
  pairs = enumerate(zip(expected.tokens, answer.tokens, strict=False))
  position = next((i for i, (x, y) in pairs if x != y), None)
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


def _units(tiny: bool, name: str, batch: int) -> _Rows:
  """Times forward passes by the number of tokens that they read."""
  checkpoint = _model(name)
  # A block of gamma 1, 2, 4, 8 and 16 has one token more.
  widths, context = ((1, 3), 12) if tiny else ((1, 2, 3, 5, 9, 17), 136)
  passes = {x: _forward_loop(checkpoint, x, context, batch) for x in widths}
  times = measuring.time_in_turns(passes, 2 if tiny else 5, 0.0)
  token_s, *passes_s = map(median, times.values())
  # Each pass reads the weights, and every slot of all caches.
  cache = jax.eval_shape(
    lambda params: checkpoint.model.init_cache(params, context),
    checkpoint.params,
  )
  read = memory.num_bytes(checkpoint.params) + batch * memory.num_bytes(cache)
  text = f'a token {1e3 * token_s:.3f} ms, {read / token_s / 1e9:.0f} GB/s'
  ratios = (
    f'{width} by 1: {pass_s / token_s:.2f}'
    for width, pass_s in zip(widths[1:], passes_s, strict=True)
  )
  yield '', '; '.join((text, *ratios)), None


def _forward_loop(
  checkpoint: Any, width: int, context: int, batch: int
) -> measuring.TimedLoop:
  """Returns a loop of forward passes that read `width` tokens of each row."""
  model, calls = checkpoint.model, context // width

  @jax.jit
  def run(params):
    def read_row(i, state):
      cache, tokens = state
      logits, _, cache = decoding.read_hidden(
        model, params, cache, tokens, i * width
      )
      # The next tokens depend on the logits, so that XLA keeps every pass.
      return cache, processing.argmax_lowest_id(logits)

    row = model.init_cache(params, context), jnp.full(width, 5, jnp.int32)
    rows = jax.tree.map(lambda x: jnp.stack([x] * batch), row)
    return jax.lax.fori_loop(0, calls, jax.vmap(read_row, (None, 0)), rows)

  return measuring.TimedLoop(functools.partial(run, checkpoint.params), calls)


def _loop(tiny: bool, names: tuple[str, str], batch: int) -> _Rows:
  """Times loops of random weights, whose acceptance is forced, and a curve."""
  models, leniences = [_model(name) for name in names], 11
  vocab = models[0].model.vocab_size
  prompts = list(np.random.default_rng(0).integers(300, vocab, (11, 64)))
  gamma, repeats, new_tokens = (2, 2, 12) if tiny else (4, 5, 128)
  pair = loops.Pair('random weights', *models, prompts, new_tokens, repeats)
  yield from _by_floor(pair, gamma, batch, (0.6, 0.8, 0.9))
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


def _by_floor(
  pair: loops.Pair, gamma: int, batch: int, rates: tuple[float, ...]
) -> _Rows:
  """Times the loops of a pair by its forward passes and the verifier alone."""
  config = ConfigDict(dict(gamma=gamma, gammas=(gamma,), gemma=False))
  config.acceptances = config.leniences = rates
  figures = loops.measure(config, pair, {'pair': '', 'batch': batch})
  for row in loops.table(figures):
    rate = f', rate {row["lenience"]}' if row['lenience'] else ''
    names = 'ms/block', 'tokens/s', 'x alone', 'x floor', 'acceptance'
    values = [f'{x} {row[x]:.4g}' for x in names if row.get(x) is not None]
    floor = row.get('x floor')
    met = None if floor is None else floor <= _FLOOR_BOUND
    yield f'{row["arm"]}{rate}', ', '.join(values), met


def _translate(tiny: bool, batch: int) -> _Rows:
  """Times the loops of a trained pair, greedily."""
  names = 'gemma3-270m', 'gemma3-270m-multi30k-de-en'
  if tiny:
    names = 'tiny-verifier', 'tiny-drafter'
  dtype = 'float32' if jax.default_backend() == 'cpu' else 'bfloat16'
  models = [load_model(name, dtype) for name in names]
  encode = functools.partial(models[0].tokenizer.encode, add_bos=True)
  prompts = [
    np.array(encode(f'{_EXAMPLE}German: {x}\nEnglish:')) for x in _GERMAN * 2
  ]
  pair = loops.Pair(names[0], *models, prompts, *(8, 2) if tiny else (48, 5))
  yield from _by_floor(pair, 4, batch, (0.3,))


if __name__ == '__main__':
  flags.DEFINE_float('minutes', 8.0, 'Minutes for all phases.', 0.1, 1440)
  flags.DEFINE_string('workdir', 'runs/accelerator', 'Folder of rows.')
  flags.DEFINE_multi_enum('phases', [*PHASES], [*PHASES], 'Phases to run.')
  flags.DEFINE_bool('tiny', False, 'Rehearses the phases on tiny models.')
  flags.DEFINE_bool('measure', False, 'Measures in this process.')
  cli.run(main)
