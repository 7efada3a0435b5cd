"""Decisions: what is certified, what is chosen, and how it is kept."""

import dataclasses
import functools
import html
import json
import math
import shutil

import numpy as np
import pytest
import small

from cascades.arguments import options_of
from cascades.config import DecodingConfig
from cascades.decisions import Decision
from cascades.sampler import sampler
from experiments import records, sweep, tasks
from experiments.analysis import certification
from experiments.analysis.analysis_config import AnalysisConfig
from experiments.analysis.certification import Answers, Setting
from experiments.reports import page, styles
from experiments.sweeps import curve_plan, deciding, plan
from experiments.tasks import halves

_CONFIG = AnalysisConfig(risk=0.1, delta=0.1, resamples=200)
_EMPTY = dict(prompt='', reference='')
_VERIFIER = Setting('verifier_only', 'verifier_only', 0, math.nan, True)


def _setting(lenience, gamma=4, method='token_v3'):
  return Setting(method, method, gamma, lenience, is_strict=lenience == -1)


def _answers(losses, speeds, settings=None, n=400):
  """Answers with constant times, and losses of each setting, [n] or a number.

  Every setting's answers to the verifier's 1.0; tokens are one each.
  """
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
  loss, low, high = verdict.lost
  assert loss == pytest.approx(0.01)
  assert low < loss < high
  assert verdict.speedup[0] == pytest.approx(3)
  assert verdict.speedup_over_strict[0] == pytest.approx(2)
  assert verdict.strict == _setting(-1.0)
  text = deciding.sentence(verdict, _CONFIG, 'rouge2')
  assert text.startswith('Use token_v3 at lenience 0.5, gamma 4: 3.00 [3.00, ')
  assert "is 1.0 of 100 points below the verifier's [-3.6, +1.7]" in text
  assert 'at most 10 points' in text
  assert 'no guarantee' in text


def test_leniences_are_tested_from_strict_on_in_either_direction():
  # Of top_k the strict lenience is infinite.
  settings = [_setting(x, method='top_k') for x in (1.0, 50.0, 5.0)]
  answers = _answers([0.5, 0.0, 0.01], [9, 2, 3], settings)
  verdict = certification.decide(answers, _CONFIG)
  assert verdict.setting.lenience == 5.0


@pytest.mark.parametrize(
  ('losses', 'speeds', 'setting', 'words'),
  [
    # A sequence stops at the first setting that is not certified.
    (
      [0, 0.5, 0, 0],
      [1.5, 2, 3, 9],
      -1.0,
      'examples for choosing (half of all) are too large or too uncertain',
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


@pytest.mark.parametrize(
  ('losses', 'speeds', 'setting'),
  [([0, 0.5], [2, 3], -1.0), ([0, 0.0], [0.5, 2], 0.2)],
)
def test_a_setting_is_used_if_it_is_shown_to_be_faster(losses, speeds, setting):
  answers = _answers(losses, speeds)
  assert certification.decide(answers, _CONFIG).setting == _setting(setting)
  # Fast on the half that chooses, slow on the half that reports.
  is_reporting = [halves.half_of(x) == 'report' for _, x in answers.ids]
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


def test_the_reporting_half_has_no_part_in_the_choice():
  answers = _answers([0, 0.0, 0.02], [1.5, 2, 3])
  is_reporting = np.array(
    [halves.half_of(x) == 'report' for _, x in answers.ids]
  )
  assert 0.3 < is_reporting.mean() < 0.7
  worse = answers.quality - is_reporting * np.array([[0], [0], [0.9], [0.9]])
  before = certification.decide(answers, _CONFIG)
  changed = dataclasses.replace(answers, quality=worse)
  after = certification.decide(changed, _CONFIG)
  assert (after.setting, after.trials) == (before.setting, before.trials)
  assert after.lost[0] == pytest.approx(before.lost[0] + 0.9)


def test_a_guarantee_fails_at_most_as_often_as_delta():
  rng = np.random.default_rng(0)
  # Twelve curves of three leniences, each of which loses just the risk.
  leniences = 0.2, 0.5, 0.9
  settings = [_setting(x, gamma) for gamma in range(1, 13) for x in leniences]
  failures = 0
  for _ in range(600):
    losses = rng.binomial(1, _CONFIG.risk, (len(settings), 300)).astype(float)
    answers = _answers(losses, [2.0] * len(settings), settings, n=300)
    trials = certification._try_all(answers, _CONFIG, _CONFIG.delta / 12)
    failures += any(x.is_certified and not x.setting.is_strict for x in trials)
  assert failures / 600 <= _CONFIG.delta


def test_more_curves_need_more_examples():
  one = certification.decide(_answers([0, 0.0], [1, 2], n=100), _CONFIG)
  settings = [_setting(0.2, gamma) for gamma in range(1, 41)]
  answers = _answers([0.0] * 40, [2.0] * 40, settings, n=100)
  many = certification.decide(answers, _CONFIG)
  assert many.share == _CONFIG.delta / 40
  assert many.needed > one.needed
  assert many.least_risk > one.least_risk


def test_the_least_risk_is_the_one_that_so_many_examples_certify():
  for n in 20, 60, 200:
    least = certification.least_risk(n, 0.01)
    assert (
      certification.needed(least, 0.01)
      <= n
      < certification.needed(least - 0.001, 0.01)
    )


def test_the_estimate_certifies():
  losses = np.resize([0.0] * 19 + [1.0], 40)
  verdict = certification.decide(_answers([0, losses], [1, 2], n=40), _CONFIG)
  setting, count = verdict.estimate
  assert setting == _setting(0.2)
  assert verdict.choosing < count <= 100_000
  said = deciding.sentence(verdict, _CONFIG, 'rouge2')
  assert f'about {count} would be needed for token_v3 at' in said


def test_too_few_examples_are_foreseen():
  config = small.config()
  with config.unlocked():
    config.decision = dict(risk=0.03, delta=0.1)
  make = functools.partial(curve_plan.Curve.from_config, config)
  curves = [
    make('verifier_only', ()),
    make('speed', (0.0,), gamma=3),
    make('token_v2', (0.6, 0.95)),
    make('token_v3', (-1.0, 0.9)),
    make('token_v3', (0.5,), num_examples=1000),
  ]
  configured = plan.configured_tasks(config)

  def foreseen(n):
    rows = [tasks.Example(id=f't/{i}', **_EMPTY) for i in range(n)]
    return deciding.shortfall(config, curves, configured, {'numerals': rows})

  said = foreseen(200)
  assert said.startswith('decision: 200 examples, of which ')
  assert 'cannot certify a loss of 0.03 with delta 0.1 and 2 curves;' in said
  needed = certification.needed(0.03, 0.05)
  assert f'give about {2 * needed} examples' in said
  assert foreseen(3 * needed) is None
  least = said.partition('decision.risk=')[2].partition('. ')[0]
  config.decision.risk = float(least)
  assert foreseen(200) is None
  assert foreseen(100)


def test_a_sweep_on_one_half_is_reported_without_a_decision(tmp_path, capsys):
  config = small.config(num_examples=1)
  with config.unlocked():
    config.decision = dict(risk=0.9, delta=0.5)
  make = functools.partial(curve_plan.Curve.from_config, config)
  curves = [make('verifier_only', ()), make('token_v3', (0.9,), gamma=3)]
  sweep.run(config, curves, tmp_path / 'run')
  said = capsys.readouterr().err
  assert said.count('decision:') == 1
  assert 'decision: not made, because 1 examples leave a half empty' in said
  assert (tmp_path / 'run/report/index.html').exists()


@pytest.fixture(scope='module')
def decided(tmp_path_factory):
  """A sweep that ended with a decision, as (config, workdir)."""
  config = small.config(num_examples=24, temperature=0.0)
  with config.unlocked():
    config.decision = dict(risk=0.9, delta=0.5)
  workdir = tmp_path_factory.mktemp('decided') / 'run'
  make = functools.partial(curve_plan.Curve.from_config, config)
  curves = [
    make('verifier_only', ()),
    make('speed', (0.0,), gamma=3),
    make('token_v3', (0.5, 0.9), gamma=3),
  ]
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
  answers = decoder.sample(
    [example.prompt for example in examples.values()],
    seed=decision.evidence['seed'],
    **decision.sample_options,
  )
  for name, answer in zip(examples, answers, strict=True):
    assert answer.tokens == tokens[name]


def test_a_decision_has_its_evidence(decided):
  _, workdir = decided
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
  assert 'certified if at most 0.5' in text


def test_other_models_than_the_decisions_are_refused(decided):
  config, workdir = decided
  with pytest.raises(ValueError, match='the hash of the verifier'):
    sampler.Sampler.from_decision(workdir, verifier=config.drafter)


def _part(fields, name):
  """The part of a decision.json that has a field."""
  parts = fields, fields['config'], fields['evidence']
  return next(x for x in parts if name in x)


_FIELDS = *options_of(DecodingConfig), *Decision.__annotations__, 'tasks'
_DAMAGED = [
  *((lambda x, name=name: _part(x, name).pop(name), name) for name in _FIELDS),
  (lambda x: x.update(format=2), 'format'),
  (lambda x: x.update(more=1), 'more'),
  (lambda x: x.update(config=5), 'config'),
  (lambda x: x['config'].update(gamma=-1), 'gamma'),
  # None is the default of a config, not of a decision.
  (lambda x: x['config'].update(gamma=None), 'gamma'),
  (lambda x: x['config'].update(lenience=None), 'lenience'),
  (lambda x: x['config'].update(temperature=None), 'temperature'),
  (lambda x: x['config'].update(magic=1), 'magic'),
  (lambda x: x['evidence'].update(tasks={'a': 1}), 'evidence tasks'),
]


@pytest.mark.parametrize(('damage', 'words'), _DAMAGED)
def test_a_damaged_decision_is_refused(decided, tmp_path, damage, words):
  fields = small.read_json(decided[1] / 'decision.json')
  path = tmp_path / 'decision.json'
  damage(fields)
  path.write_text(json.dumps(fields))
  with pytest.raises(ValueError, match=rf'^decision: .*decision.json.*{words}'):
    Decision.load(path)
  with pytest.raises(ValueError, match='decision: there is no'):
    Decision.load(tmp_path / 'none')


@pytest.mark.parametrize(
  ('method', 'lenience'),
  [('token_v3', -1.0), ('opt', -math.inf), ('drafter_only', 0.0)],
)
def test_a_decision_holds_its_lenience(decided, tmp_path, method, lenience):
  made, config = Decision.load(decided[1]), DecodingConfig(method=method)
  made = made.model_copy(update={'config': config})
  deciding.save(made, tmp_path / 'decision.json')
  loaded = Decision.load(tmp_path).config
  assert loaded == config.replace(lenience=lenience)


def test_a_page_shows_a_decision_among_lossless_settings(decided, tmp_path):
  path = tmp_path / 'decision.json'
  fields = small.read_json(decided[1] / 'decision.json')
  trials = fields['evidence']['trials']
  fields['evidence']['trials'] = [x for x in trials if x['p'] is None]
  # Without an answer of the choosing half.
  fields['evidence']['trials'][0]['speedup'] = 'nan'
  path.write_text(json.dumps(fields))
  table = page._decision_section(Decision.load(path)).table
  rows = [[x.text for x in cells] for _, cells in table.rows({})]
  assert rows[0][2] == styles.DASH
  assert {row[4] for row in rows} == {styles.DASH}


@pytest.mark.parametrize('odd', [dict(trials=5), dict(delta_per_curve='x')])
def test_parts_that_fail_are_left_out(decided, tmp_path, monkeypatch, odd):
  monkeypatch.setattr(page.figure, 'draw', None)
  workdir = shutil.copytree(decided[1], tmp_path / 'run')
  fields = small.read_json(workdir / 'decision.json')
  fields['evidence'] |= odd
  (workdir / 'decision.json').write_text(json.dumps(fields))
  text = page.write_report([page.runs.read(workdir)]).read_text()
  for part in ('figure', 'table of the decision'):
    assert f'Left out: the {part} cannot be made (' in text


def test_scores_of_a_corpus_are_named_by_the_sentence():
  task = tasks.Task(name='t', metrics=['bleu'], max_new_tokens=1)
  assert deciding._quality_name({'t': task}) == 'sentence-level BLEU'
