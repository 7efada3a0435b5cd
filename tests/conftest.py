"""What every test file needs."""

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
