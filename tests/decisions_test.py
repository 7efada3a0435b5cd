"""Decisions: what is certified, chosen or fixed, and how it is kept."""

import dataclasses
import functools
import html
import json
import math
import shutil

import numpy as np
import pandas as pd
import pytest
import small
from answers import COSTS, make_alone, make_failure

from cascades.arguments import options_of
from cascades.config import DecodingConfig
from cascades.decisions import Decision
from cascades.sampler import sampler
from experiments import records, sweep, tasks
from experiments.analysis import certification
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.certification import Answers, Setting
from experiments.reports import page, tables
from experiments.sweeps import curve_plan, deciding, plan
from experiments.sweeps.fields import SweepConfig
from experiments.tasks import choosing, half_of

_CONFIG = AnalysisConfig(risk=0.1, delta=0.1, resamples=200)
_REPORTED = ([0, 0.5], [2, 3], -1.0), ([0, 0.0], [0.5, 2], 0.2)
_LENIENCES = ('token_v3', -1.0), ('opt', -math.inf), ('drafter_only', 0.0)
_HALF = 'examples for choosing (half of all) are'
_EMPTY = dict(prompt='', reference='')
_VERIFIER = Setting('verifier_only', 'verifier_only', 0, math.nan, True)


def _setting(lenience, gamma=4, method='token_v3'):
  return Setting(method, method, gamma, lenience, is_strict=lenience == -1)


def _answers(losses, speeds, settings=None, n=400):
  """Answers with constant times, and losses to the verifier, [n] or one."""
  if settings is None:
    settings = [_setting(x) for x in (-1.0, 0.2, 0.5, 0.9)[: len(losses)]]
  losses = np.stack([np.broadcast_to(x, n) for x in (0.0, *losses)])
  times = 1 / np.array([1.0, *speeds])
  return Answers(
    (_VERIFIER, *settings),
    ids=tuple(('t', f't/{i}') for i in range(n)),
    quality=1.0 - losses,
    emitted=np.ones(losses.shape),
    latency=np.broadcast_to(times[:, None], losses.shape),
  )


def test_the_fastest_certified_setting_is_chosen():
  answers = _answers([0, 0.0, 0.01, 0.5], [1.5, 2, 3, 9])
  verdict = certification.decide(answers, _CONFIG)
  assert verdict.setting == _setting(0.5)
  assert [x.is_certified for x in verdict.trials] == [True] * 4 + [False]
  loss, low, high = verdict.loss
  assert loss == pytest.approx(0.01)
  assert low < loss < high
  assert verdict.speedup[0] == pytest.approx(3)
  assert verdict.speedup_over_strict[0] == pytest.approx(2)
  assert verdict.strict == _setting(-1.0)
  text = deciding.sentence(verdict, _CONFIG, 'rouge2')
  assert text.startswith('Use token_v3 at lenience 0.5, gamma 4: 3.00 [3.00, ')
  assert "is 1.0 of 100 points below the verifier's [-3.4, +1.5]" in text
  assert 'at most 10 points' in text
  assert 'no guarantee' in text


@pytest.mark.parametrize(
  ('losses', 'speeds', 'setting', 'words'),
  [
    # A sequence stops at the first setting that is not certified.
    (
      [0, 0.5, 0, 0],
      [1.5, 2, 3, 9],
      -1.0,
      f'{_HALF} too large or too uncertain',
    ),
    ([0, 0.0], [2.5, 2], -1.0, 'No certified setting that may lose'),
    ([0, 0.5], [0.9, 9], None, 'because the drafter does not pay'),
    ([0, math.nan], [1.5, 9], -1.0, 'Without a metric'),
    ([0], [1.5], -1.0, 'No setting that may lose quality was tried'),
  ],
)
def test_what_is_chosen_where_no_cascade_is(losses, speeds, setting, words):
  verdict = certification.decide(_answers(losses, speeds), _CONFIG)
  expected = _VERIFIER if setting is None else _setting(setting)
  assert verdict.setting == expected
  assert words in deciding.sentence(verdict, _CONFIG, 'rouge2')


def test_leniences_are_tested_from_strict_on_in_either_direction():
  # Of top_k the strict lenience is infinite.
  settings = [_setting(x, method='top_k') for x in (1.0, 50.0, 5.0)]
  answers = _answers([0.5, 0.0, 0.01], [9, 2, 3], settings)
  verdict = certification.decide(answers, _CONFIG)
  assert verdict.setting.lenience == 5.0


@pytest.mark.parametrize(('losses', 'speeds', 'setting'), _REPORTED)
def test_the_reporting_half_alone_shows_a_setting(losses, speeds, setting):
  answers = _answers(losses, speeds)
  before = certification.decide(answers, _CONFIG)
  assert before.setting == _setting(setting)
  names = [name for _, name in answers.ids]
  is_reporting = [not x for x in choosing(names)]
  assert sum(is_reporting) == len(names) // 2
  # Few examples are not of the half that their id alone decides.
  moved = [half_of(x) == 'choose' for x in names] == np.array(is_reporting)
  assert 0 < np.mean(moved) < 0.1
  # It has no part in the choice.
  worse = answers.quality - is_reporting * np.array([[0], [0.9], [0.9]])
  worse = dataclasses.replace(answers, quality=worse)
  after = certification.decide(worse, _CONFIG)
  assert (after.setting, after.trials) == (before.setting, before.trials)
  assert after.loss[0] == pytest.approx(before.loss[0] + 0.9)
  # Fast on the half that chooses, slow on the half that reports.
  latency = np.where(is_reporting, [[1.0], [1.4], [1.4]], answers.latency)
  slow = dataclasses.replace(answers, latency=latency)
  verdict = certification.decide(slow, _CONFIG)
  assert verdict.setting == _VERIFIER
  said = f'because {_setting(setting)} is not shown to be faster: 0.71 [0.71,'
  assert said in deciding.sentence(verdict, _CONFIG, 'rouge2')


def test_where_the_verifier_scores_nothing_it_decodes_alone():
  answers = _answers([0, 0.0], [1.5, 2])
  nothing = dataclasses.replace(answers, quality=0 * answers.quality)
  verdict = certification.decide(nothing, _CONFIG)
  assert verdict.setting == _VERIFIER
  fixed = certification.judge(nothing, *nothing.settings[:0:-1], _CONFIG)
  assert (fixed.is_shown, fixed.use) == (False, _VERIFIER)
  for judged in (verdict, fixed):
    text = deciding.sentence(judged, _CONFIG, 'rouge2')
    assert text.startswith('The verifier scores 0.00 on t: look at the prompts')


def test_a_guarantee_fails_at_most_as_often_as_delta():
  rng = np.random.default_rng(0)
  # Twelve curves of three leniences, each of which loses just the risk.
  leniences = 0.2, 0.5, 0.9
  settings = [_setting(x, gamma) for gamma in range(1, 13) for x in leniences]
  failures = 0
  for _ in range(600):
    losses = rng.binomial(1, _CONFIG.risk, (len(settings), 300)).astype(float)
    answers = _answers(losses, [2.0] * len(settings), settings, n=300)
    trials = certification.try_all(answers, _CONFIG, _CONFIG.delta / 12)
    failures += any(x.is_certified and not x.setting.is_strict for x in trials)
  assert failures / 600 <= _CONFIG.delta


def test_more_curves_and_less_risk_need_more_examples():
  one = certification.decide(_answers([0, 0.0], [1, 2], n=100), _CONFIG)
  settings = [_setting(0.2, gamma) for gamma in range(1, 41)]
  answers = _answers([0.0] * 40, [2.0] * 40, settings, n=100)
  many = certification.decide(answers, _CONFIG)
  assert many.delta_per_curve == _CONFIG.delta / 40
  assert many.needed_examples > one.needed_examples
  assert many.least_risk > one.least_risk
  needed = certification.needed
  for n in 20, 60, 200:
    least = certification.least_risk(n, 0.01)
    assert needed(least, 0.01) <= n < needed(least - 0.001, 0.01)


def test_the_estimate_certifies():
  losses = np.resize([0.0] * 19 + [1.0], 40)
  verdict = certification.decide(_answers([0, losses], [1, 2], n=40), _CONFIG)
  setting, count = verdict.estimate
  assert setting == _setting(0.2)
  assert verdict.choosing_examples < count <= 100_000
  said = deciding.sentence(verdict, _CONFIG, 'rouge2')
  assert f'about {count} would be needed for token_v3 at' in said


# --- A setting that was fixed before a sweep.

_FIXED = AnalysisConfig(margin=0.03, resamples=200)
_STRICT = Setting('speed', 'speed', 4, 0.0, True)
_CASCADE = Setting('token_v2', 'token_v2', 12, 0.7, False)


def _judge(loss=0.0, speed=3.0, n=400, setting=_CASCADE, strict=2.0):
  """The judgement of constant times, and a loss of each answer, [n] or one."""
  settings = _STRICT, _CASCADE
  answers = _answers([0.0, loss], [strict, speed], settings, n)
  return certification.judge(answers, setting, _STRICT, _FIXED)


def test_a_fixed_setting_is_stated_with_its_intervals():
  judgement = _judge(loss=0.01)
  assert judgement.is_shown
  text = deciding.sentence(judgement, _FIXED, 'exact match')
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
  text = deciding.sentence(judgement, _FIXED, 'bleu')
  assert words in text
  end = ' Use speed at lenience 0, gamma 4, which loses no quality.'
  assert text.endswith(end) == (changes.get('strict') != 0.8)


def test_a_strict_setting_needs_no_examples_for_its_quality():
  # It differs by chance alone, and its law is the verifier's.
  faster = _CASCADE._replace(is_strict=True)
  speeds, settings = [2.0, 3.0], (_STRICT, faster)
  answers = _answers([0.0, 0.1], speeds, settings, n=20)
  assert certification.judge(answers, faster, _STRICT, _FIXED).is_shown
  # But a sweep without an answer is refused.
  failure, _ = make_failure(make_alone('verifier_only'), 'It is too long.')
  with pytest.raises(ValueError, match=r'^decision: the verifier alone answ'):
    certification.collect([failure], COSTS)


def _config(decision, **fields):
  config = small.config(**fields)
  with config.unlocked():
    config.decision = decision
  return config


def _fixed_config():
  decision = dict(method='token_v2', lenience=0.7, gamma=2, strict_gamma=2)
  return _config(decision, num_examples=5, shard_size=2)


def _fixed_settings(config):
  typed = SweepConfig.convert(config)
  return deciding.fixed_settings(typed.decision, typed.values)


def test_fixed_settings_have_the_options_of_the_config():
  config = _fixed_config()
  config.verification, config.gate = 'block', 'processed'
  settings = _fixed_settings(config)
  variants = [x.variant for x in settings]
  assert variants == ['token_v2 block gate processed', 'speed block']
  # A method without leniences has nan, as its records do.
  config.decision.method = 'always_accept'
  setting, _ = _fixed_settings(config)
  assert setting.lenience is math.nan


def test_no_decision_is_made_without_its_settings():
  config = _fixed_config()
  config.decision.gamma = 3
  said = []
  more = dict(tasks={}, costs=None, facts={}, data={}, say=said.append)
  assert deciding.decide(SweepConfig.convert(config), [], {}, **more) is None
  (line,) = said
  assert 'because the sweep did not decode speed at lenience 0' in line
  assert 'token_v2 at lenience 0.7, gamma 3' in line


_CURVES = [
  small.curve('verifier_only', ()),
  small.curve('drafter_only', (), num_examples=3),
  small.curve('speed', (0.0,), gamma=2),
  small.curve('token_v2', (0.7,), gamma=2),
  small.curve('token_v2', (-1.0, 1.0), gamma=2, num_examples=3),
  small.curve('sequence_mean', (0.05,), num_examples=3),
]


@pytest.mark.slow
def test_a_decision_of_its_own_number_of_examples_stands_first(tmp_path):
  workdir, other = tmp_path / 'run', tmp_path / 'other'
  sweep.run(_fixed_config(), _CURVES, workdir, quiet=True)
  pairs = [(x.method, x.gamma) for x in records.read_all(workdir)]
  counts = pd.Series(pairs).value_counts()
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
  config = _fixed_config()
  config.decision.lenience = 0.5
  shutil.copytree(workdir, other)
  sweep.run(config, _CURVES, other, quiet=True)
  assert not (other / 'decision.json').exists()


def test_too_few_examples_are_foreseen():
  config = _config(dict(risk=0.03, delta=0.1))
  make = functools.partial(curve_plan.Curve.from_config, config)
  curves = [
    make('verifier_only', ()),
    make('speed', (0.0,)),
    make('token_v2', (0.6, 0.95)),
    make('token_v3', (-1.0, 0.9)),
    make('token_v3', (0.5,), num_examples=1000),
  ]
  configured = plan.configured_tasks(config)

  def foreseen(n):
    rows = [tasks.Example(id=f't/{i}', **_EMPTY) for i in range(n)]
    typed = SweepConfig.convert(config)
    return deciding.shortfall(typed, curves, configured, {'numerals': rows})

  said = foreseen(200)
  assert said.startswith('decision: 200 examples, of which ')
  assert (
    'cannot certify a loss of 0.03 with delta 0.1 and 2 curves (a method'
    in said
  )
  needed = certification.needed(0.03, 0.05)
  assert f'give {2 * needed} examples' in said
  assert foreseen(2 * needed - 2)
  assert foreseen(2 * needed) is None
  config.decision.risk = 0.06
  assert foreseen(200) is None
  assert foreseen(100)


def test_a_sweep_on_one_half_is_reported_without_a_decision(tmp_path, capsys):
  config = _config(dict(risk=0.9, delta=0.5), num_examples=1)
  curves = [
    small.curve('verifier_only', ()),
    small.curve('speed', (0.9,), gamma=4),
  ]
  sweep.run(config, curves, tmp_path / 'run')
  said = capsys.readouterr().err
  assert said.count('decision:') == 1
  assert 'decision: not made, because 1 examples leave a half empty' in said
  assert (tmp_path / 'run/report/index.html').exists()


@pytest.fixture(scope='module')
def decided(tmp_path_factory):
  """A sweep that ended with a decision, as (config, workdir)."""
  decision = dict(risk=0.9, delta=0.5)
  config = _config(decision, num_examples=24, temperature=0.0)
  workdir = tmp_path_factory.mktemp('decided') / 'run'
  make = functools.partial(curve_plan.Curve.from_config, config)
  rules = dict(verifier_only=(), speed=(0.0,), token_v3=(0.5, 0.9))
  curves = [make(*rule) for rule in rules.items()]
  sweep.run(config, curves, workdir, quiet=True)
  return config, workdir


def test_a_sampler_of_a_decision_gives_the_tokens_of_the_evidence(decided):
  _, workdir = decided
  decision = Decision.load(workdir)
  decoder = sampler.Sampler.from_decision(workdir / 'decision.json')
  config = decoder.config
  assert config.to_dict() == decision.config.to_dict()
  examples = records.read_examples(workdir)['numerals']
  has_lenience = config.method.name != 'verifier_only'
  tokens = {
    record.id: trace.tokens
    for record, trace in small.made(workdir)
    if record.method == config.method.name
    and (record.lenience == config.lenience or not has_lenience)
  }
  assert len(tokens) >= 20
  options = decision.sample_options | dict(seed=decision.evidence['seed'])
  answers = decoder.sample([x.prompt for x in examples.values()], **options)
  for name, answer in zip(examples, answers, strict=True):
    assert answer.tokens == tokens[name]


def test_a_decision_has_its_evidence(decided):
  config, workdir = decided
  fields = small.read_json(workdir / 'decision.json')
  evidence = fields['evidence']
  assert evidence['choosing_examples'] + evidence['reporting_examples'] == 24
  assert len(evidence['trials']) == 4
  assert evidence['data']['numerals']['hash']
  names = {'verifier', 'drafter', 'tokenizer', 'settings'}
  assert fields['weights'].keys() == names
  text = html.unescape((workdir / 'report' / 'index.html').read_text())
  assert '<h2>Decision</h2>' in text
  assert fields['sentence'] in text
  assert 'must be at most 0.5.' in text
  with pytest.raises(ValueError, match='the hash of the verifier'):
    sampler.Sampler.from_decision(workdir, verifier=config.drafter)


@pytest.mark.parametrize(
  ('part', 'name', 'value'),
  [
    *(('', name, ...) for name in Decision.__annotations__),
    *(('', 'format', 2), ('', 'more', 1), ('', 'config', 5)),
    *(('evidence', 'tasks', x) for x in (..., {'a': 1})),
    *(('config', name, ...) for name in options_of(DecodingConfig)),
    *(('config', 'gamma', -1), ('config', 'magic', 1)),
    # None is the default of a config, not of a decision.
    *(('config', x, None) for x in ('gamma', 'lenience', 'temperature')),
  ],
)
def test_a_damaged_decision_is_refused(decided, tmp_path, part, name, value):
  fields = small.read_json(decided[1] / 'decision.json')
  path, changed = tmp_path / 'decision.json', fields.get(part, fields)
  changed[name] = value
  if value is ...:
    del changed[name]
  path.write_text(json.dumps(fields))
  with pytest.raises(ValueError, match=rf'^decision: .*decision.json.*{name}'):
    Decision.load(path)
  with pytest.raises(ValueError, match='decision: there is no'):
    Decision.load(tmp_path / 'none')


@pytest.mark.parametrize(('method', 'lenience'), _LENIENCES)
def test_a_decision_holds_its_lenience(decided, tmp_path, method, lenience):
  made, config = Decision.load(decided[1]), DecodingConfig(method=method)
  made = made.model_copy(update={'config': config})
  deciding.save(made, tmp_path / 'decision.json')
  loaded = Decision.load(tmp_path).config
  assert loaded == config.replace(lenience=lenience)


def test_a_page_shows_a_decision_or_omits_it(decided, tmp_path, monkeypatch):
  workdir = shutil.copytree(decided[1], tmp_path / 'run')
  path = workdir / 'decision.json'
  fields = small.read_json(path)
  evidence = fields['evidence']
  lossless = [x for x in evidence['trials'] if x['p'] is None]
  # Without an answer of the choosing half.
  lossless[0]['speedup'] = 'nan'
  # A spreadsheet would compute it.
  lossless[0]['=1+1'] = 2
  shown = fields | {'evidence': evidence | {'trials': lossless}}
  path.write_text(json.dumps(shown))
  table = page._trials(Decision.load(path))
  rows = [[x.text for x in cells] for _, cells in table.rows({})]
  assert rows[0][2] == tables.DASH
  assert {row[4] for row in rows} == {tables.DASH}
  assert table.csv().partition('\n')[0].endswith(",'=1+1")
  monkeypatch.setattr(page.figure, 'draw', None)
  for odd in dict(trials=5), dict(delta_per_curve='x'):
    path.write_text(json.dumps(fields | {'evidence': evidence | odd}))
    text = page.write_report(page.runs.read(workdir)).read_text()
    # What was decided can be said without its numbers.
    assert fields['sentence'] in html.unescape(text)
    for part in ('figure', 'table of the decision'):
      assert f'Left out: the {part} cannot be made (' in text


def test_scores_of_a_corpus_are_named_by_the_sentence():
  task = tasks.Task(name='t', metrics=['bleu'], max_new_tokens=1)
  assert deciding._quality_name({'t': task}) == 'sentence-level BLEU'
