"""The sweep of the smoke tier: `python -m pytest -m smoke`."""

import pandas as pd
import pytest
import small

from experiments import sweep


# The default tier has `sweep_test`.
@pytest.mark.slow
@pytest.mark.smoke
def test_a_sweep_of_two_points_ends_with_a_summary(tmp_path):
  curves = [small.curve('verifier_only', ()), small.curve('token_v3', (0.5,))]
  sweep.run(small.config(), curves, tmp_path / 'run', quiet=True)
  frame = pd.read_csv(tmp_path / 'run' / 'summary.csv')
  assert list(frame.method) == ['verifier_only', 'token_v3']
  assert (frame.n == 5).all()
  assert (frame.failed == 0).all()
  assert small.read_json(tmp_path / 'run/costs.json')
