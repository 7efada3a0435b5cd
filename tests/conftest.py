"""Set-up and helpers that all test files share."""

import contextlib
import functools
import os
import pathlib
import re
import shutil
import sys

import jaxtyping

# Tests of the other folders import heads that `eagle_test` writes.
sys.path.append(str(pathlib.Path(__file__).parent / 'parity'))

# With CASCADES_CHECK_TYPES=1 annotations of the library, shapes included, are
# checked in every call.
if os.environ.get('CASCADES_CHECK_TYPES', '0') != '0':
  jaxtyping.install_import_hook('cascades', 'typechecking.check')

from cascades import compilation

# Processes that tests start import this checkout, whatever their folder: the
# installed package is the library alone.
os.environ['PYTHONPATH'] = os.pathsep.join(
  [
    str(pathlib.Path(__file__).parents[1]),
    *filter(None, [os.environ.get('PYTHONPATH')]),
  ]
)

# No test asks the network for a name that is not there.
os.environ.setdefault('HF_HUB_OFFLINE', '1')

# One folder for all processes of a run, those that they start, and the next
# run: what one has compiled, the other loads. Single operations too: tests of
# faults forget them again and again. With a limit of its size JAX would look at
# all of it whenever something is added; so it is emptied here when it is full.
if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
  _compiled = compilation.cache_folder().with_name('compiled-by-tests')
  with contextlib.suppress(FileNotFoundError):
    if sum(file.stat().st_size for file in _compiled.glob('*')) > 2**30:
      shutil.rmtree(_compiled, ignore_errors=True)
  os.environ['JAX_COMPILATION_CACHE_DIR'] = str(_compiled)
  os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0.02'

# What is compiled for a test runs for a moment: to compile it well takes twice
# as long. A test that samples at length, or one of how much memory a program
# takes, asks for XLA's optimisations.
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')

import jax
import pytest
import tiers

from cascades.sampler import batching


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items) -> None:
  """With CASCADES_TURN=0/4 a quarter of the slow cases of a test remain."""
  if turn := os.environ.get('CASCADES_TURN'):
    kept = dict.fromkeys(tiers.of_turn(items, turn))
    config.hook.pytest_deselected(items=[x for x in items if x not in kept])
    items[:] = kept


@pytest.fixture(autouse=True)
def forget():
  """Drops what was compiled: at 65,530 memory maps a process crashes."""
  yield
  maps = pathlib.Path('/proc/self/maps')
  # Where it cannot be told, after every test.
  if not maps.exists() or len(maps.read_text().splitlines()) > 25_000:
    jax.clear_caches()


@pytest.fixture(autouse=True, scope='session')
def brief_sweeps():
  """Times unit costs for .1 s, and draws pages of few resamples."""
  from experiments import reports
  from experiments.sweeps import costs

  with pytest.MonkeyPatch.context() as patch:
    measure = functools.partial(costs.measure, seconds=0.1)
    patch.setattr(costs, 'measure', measure)
    few = reports.AnalysisConfig(resamples=100)
    write = functools.partial(reports.write_report, config=few)
    patch.setattr(reports, 'write_report', write)
    yield


@pytest.fixture(scope='module')
def few_shapes():
  """Batches of one row or four, caches of 256 slots: few programs."""
  real = batching.bucket

  def width(rows, batch_size):
    return min(batch_size, 1 if rows == 1 else 4)

  def bucket(n, least=64):
    return real(n, 256 if least >= 32 else least)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(batching, 'bucket', bucket)
    patch.setattr(batching, 'width', width)
    yield


@contextlib.contextmanager
def optimised():
  """Compiles well what is compiled within: for what samples at length."""
  option = 'jax_disable_most_optimizations'
  before = jax.config.read(option)
  jax.config.update(option, False)
  try:
    yield
  finally:
    jax.config.update(option, before)


@contextlib.contextmanager
def unchecked_types():
  """Lets values of wrong types through to the code that refuses them."""
  before = jaxtyping.config.jaxtyping_disable
  jaxtyping.config.update('jaxtyping_disable', True)
  try:
    yield
  finally:
    jaxtyping.config.update('jaxtyping_disable', before)


@pytest.fixture
def wrong_types():
  """Lets a test pass values of wrong types."""
  with unchecked_types():
    yield


def refused(option: str, call, *args) -> str:
  """Returns the sentence in which a call refuses an option."""
  pattern = f'^{re.escape(option)}: '
  with unchecked_types(), pytest.raises(ValueError, match=pattern) as error:
    call(*args)
  message = str(error.value)
  assert message.endswith('.')
  assert '\n' not in message
  return message
