"""A setting that was fixed before a sweep: what is stated, and refused."""

import html
import math
import shutil

import decisions_test
import numpy as np
import pandas as pd
import pytest
import small

from cascades.decisions import Decision
from experiments import records, sweep
from experiments.analysis import certification
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.certification import Setting
from experiments.sweeps import deciding

_CONFIG = AnalysisConfig(margin=0.03, resamples=200)
_STRICT = Setting('speed', 'speed', 4, 0.0, True)
_CASCADE = Setting('token_v2', 'token_v2', 12, 0.7, False)


def _judge(loss=0.0, speed=3.0, n=400, setting=_CASCADE, strict=2.0):
  """The judgement of constant times, and a loss of each answer, [n] or one."""
  settings = _STRICT, _CASCADE
  answers = decisions_test._answers([0.0, loss], [strict, speed], settings, n)
  return certification.judge(answers, setting, _STRICT, _CONFIG)


def test_a_fixed_setting_is_stated_with_its_intervals():
  judgement = _judge(loss=0.01)
  assert judgement.is_shown
  text = deciding.sentence(judgement, _CONFIG, 'exact match')
  for said in (
    'Use token_v2 at lenience 0.7, gamma 12: 1.50 [1.50, 1.50] times as fast as'
    ' strict decoding (speed at lenience 0, gamma 4) and 3.00 [3.00, 3.00]',
    "is 1.0 of 100 points below the verifier's [-2.2, +0.2] on 400 examples.",
    'because the paired 95 % interval is above -3.',
  ):
    assert said in text
  assert [x.is_certified for x in judgement.trials] == [True] * 3


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    # No answer differs.
    ({'n': 100}, 'cannot be judged on 100 examples; give 125 or more, which'),
    ({'loss': 0.04}, "not shown to keep the verifier's quality: its bleu is 4"),
    # The mean is within the margin, and its interval is not.
    ({'loss': np.resize([1.0] + [0.0] * 49, 400)}, 'interval is not above -3'),
    ({'speed': 1.9}, 'is not shown to be faster than strict decoding and'),
    ({'setting': _STRICT}, 'the verifier alone: it is 1.00 [1.00, 1.00] times'),
    ({'loss': math.nan}, 'cannot be judged without a metric; give --metric'),
    ({'strict': 1.3, 'speed': 0.9}, 'it is 0.69 [0.69, 0.69] times'),
    (
      {'strict': 0.8, 'speed': 0.9},
      'Use the verifier alone, which loses no quality; speed at lenience 0,'
      ' gamma 4 is not shown to be faster: 0.80 [0.80, 0.80] times as fast',
    ),
  ],
)
def test_what_is_not_shown_is_not_stated(changes, words):
  judgement = _judge(**changes)
  assert not judgement.is_shown
  certified = [x.setting for x in judgement.trials if x.is_certified]
  assert all(setting.is_strict for setting in certified)
  text = deciding.sentence(judgement, _CONFIG, 'bleu')
  assert words in text
  end = ' Use speed at lenience 0, gamma 4, which loses no quality.'
  assert text.endswith(end) == (changes.get('strict') != 0.8)


def test_a_strict_setting_needs_no_examples_for_its_quality():
  # It differs by chance alone, and its law is the verifier's.
  faster = _CASCADE._replace(is_strict=True)
  speeds, settings = [2.0, 3.0], (_STRICT, faster)
  answers = decisions_test._answers([0.0, 0.1], speeds, settings, n=20)
  assert certification.judge(answers, faster, _STRICT, _CONFIG).is_shown
  # But a sweep without an answer is refused.
  with pytest.raises(ValueError, match=r'^decision: the verifier alone'):
    _judge(n=0)


_CURVES = [
  small.curve('verifier_only', ()),
  small.curve('drafter_only', (), num_examples=3),
  small.curve('speed', (0.0,), gamma=2),
  small.curve('token_v2', (0.7,), gamma=2),
  small.curve('token_v2', (-1.0, 1.0), gamma=2, num_examples=3),
  small.curve('sequence_mean', (0.05,), num_examples=3),
]


def _config():
  config = small.config(num_examples=5, shard_size=2)
  with config.unlocked():
    config.decision = dict(method='token_v2', lenience=0.7, gamma=2)
    config.decision.strict_gamma = 2
  return config


@pytest.mark.slow
def test_a_decision_of_its_own_number_of_examples_stands_first(tmp_path):
  workdir, other = tmp_path / 'run', tmp_path / 'other'
  sweep.run(_config(), _CURVES, workdir, quiet=True)
  counts = pd.Series(
    [(x.method, x.gamma) for x in records.read_all(workdir)]
  ).value_counts()
  assert counts['verifier_only', 0] == counts['speed', 2] == 5
  assert counts['token_v2', 2] == 5 + 2 * 3
  assert counts['drafter_only', 0] == 3
  # Tables compare all points on the same examples.
  assert (pd.read_csv(workdir / 'summary.csv').n == 3).all()
  decision = Decision.load(workdir)
  assert decision.evidence['reporting_examples'] == 5
  assert len(decision.evidence['trials']) == 3
  assert 'verifier scores 0.00 on numerals' in decision.sentence
  page = html.unescape((workdir / 'report/index.html').read_text())
  assert f'<p class="first">{decision.sentence}</p>' in page
  assert 'nothing was chosen on these examples' in page
  # Another setting has not the earlier decision.
  config = _config()
  config.decision.lenience = 0.5
  shutil.copytree(workdir, other)
  sweep.run(config, _CURVES, other, quiet=True)
  assert not (other / 'decision.json').exists()


def test_fixed_settings_have_the_options_of_the_config():
  config = _config()
  config.verification, config.gate = 'block', 'processed'
  settings = deciding._fixed_settings(config.decision, config)
  variants = [x.variant for x in settings]
  assert variants == ['token_v2 block gate processed', 'speed block']
  # A method without leniences has nan, as its records do.
  config.decision.method = 'always_accept'
  setting, _ = deciding._fixed_settings(config.decision, config)
  assert setting.lenience is math.nan


def test_no_decision_is_made_without_its_settings():
  config = _config()
  config.decision.gamma = 3
  said = []
  more = dict(tasks={}, costs=None, facts={}, data={}, say=said.append)
  assert deciding.decide(config, [], {}, **more) is None
  (line,) = said
  assert 'because the sweep did not decode speed at lenience 0' in line
  assert 'token_v2 at lenience 0.7, gamma 3' in line
