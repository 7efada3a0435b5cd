"""What every test file needs."""

import atexit
import os
import shutil
import tempfile

# One folder for all processes of a run, and those that they start: what one has
# compiled, the next one loads.
if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
  _FOLDER = tempfile.mkdtemp(prefix='cascades-tests-')
  atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
  os.environ['JAX_COMPILATION_CACHE_DIR'] = _FOLDER
  os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0.3'

# What is compiled for a test runs for a moment: to compile it well takes twice
# as long. A test that samples at length, or one of how much memory a program
# takes, asks for XLA's optimisations.
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')

import jax
import pytest


@pytest.fixture(autouse=True, scope='module')
def forget():
  """Drops what a file has compiled.

  A process may hold 65,530 memory maps; a few hundred compiled loops are as
  many, and then it crashes.
  """
  yield
  jax.clear_caches()


@pytest.fixture
def quickly():
  """Compiles in two thirds of the time what then runs for a moment.

  A test that samples at length, or one of how much memory a program takes, has
  more of XLA's optimisations.
  """
  option = 'jax_disable_most_optimizations'
  before = jax.config.read(option)
  jax.config.update(option, True)
  yield
  jax.config.update(option, before)
