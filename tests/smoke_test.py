"""The smoke tier: a method of each kind, and a sweep of two points.

Every claim here is proven at length elsewhere; this is what to run after each
edit: `python -m pytest -m smoke`.
"""

import pandas as pd
import pytest
import small

from experiments import sweep
from experiments.sweeps import curve_plan

pytestmark = pytest.mark.smoke
_PROMPTS = ['The number 12 in words:', 'The number 4302 in words:']
# One method of each kind, with a lenience between its ends.
_METHODS = {'speed': 0.3, 'opt': 0.1, 'token_v3': 0.3, 'min_p': 0.3}


def _sampler(**options):
  return small.sampler(*small.tables(), gamma=2, **options)


@pytest.mark.parametrize('name', _METHODS)
def test_a_method_of_each_kind_decodes(name):
  sampler = _sampler(method=name, lenience=_METHODS[name])
  answers = sampler.sample(_PROMPTS, max_new_tokens=8)
  assert answers == sampler.sample(_PROMPTS, max_new_tokens=8)
  for answer in answers:
    counts = answer.counts
    assert counts['accepted'] <= counts['examined'] <= counts['drafted']
    assert 1 <= len(answer.tokens) <= 8
    assert len(answer.tokens) == len(answer.sources)


def test_a_sweep_of_two_points_ends_with_a_summary(tmp_path):
  config = small.config(num_examples=2, batch_size=2, gamma=2)
  curves = [
    curve_plan.Curve.from_config(config, 'verifier_only', ()),
    curve_plan.Curve.from_config(config, 'token_v3', (0.3,)),
  ]
  sweep.run(config, curves, tmp_path / 'run', quiet=True)
  frame = pd.read_csv(tmp_path / 'run' / 'summary.csv')
  assert list(frame.method) == ['verifier_only', 'token_v3']
  assert (frame.n == 2).all()
  assert (frame.failed == 0).all()
  assert small.read_json(tmp_path / 'run/costs.json')
