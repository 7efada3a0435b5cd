"""The sweep of the smoke tier: `python -m pytest -m smoke`."""

import pandas as pd
import pytest
import small

from experiments import sweep


@pytest.mark.smoke
def test_a_sweep_of_two_points_ends_with_a_summary(tmp_path):
  config = small.config(num_examples=2, batch_size=2)
  curves = [
    small.curve('verifier_only', ()),
    small.curve('opt', (0.3,), gamma=2),
  ]
  sweep.run(config, curves, tmp_path / 'run', quiet=True)
  frame = pd.read_csv(tmp_path / 'run' / 'summary.csv')
  assert list(frame.method) == ['verifier_only', 'opt']
  assert (frame.n == 2).all()
  assert (frame.failed == 0).all()
  assert small.read_json(tmp_path / 'run/costs.json')
