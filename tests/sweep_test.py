"""A sweep from config to report: small, whole, resumed and refused."""

import dataclasses
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys

import jax
import ml_collections
import numpy as np
import pandas as pd
import pytest

from cascades import checkpoints, decoding, memory, metrics, records
from cascades.tasks import TASKS
from experiments import cli, sweep
from experiments.sweep import Curve

_ROOT = pathlib.Path(__file__).parent.parent
_CURVES = [
  Curve('verifier_only', ()),
  Curve('drafter_only', ()),
  Curve('speed', (0.0, 1.0), 4),
  Curve('token_v3', (-1.0, 0.5, 1.0), 4),
  Curve('speed', (0.5,), 2, verification='block'),
  Curve('speed', (0.0,), 2, verification='multi_round', drafts=2),
  Curve('chow', (-1.0, 0.1, 1.0), 4, verification='sequential'),
  Curve('sequence_mean', (-1.0, 0.05, 1.0)),
  Curve('sequence_least', (-1.0, 1.0)),
]


def _config(**fields):
  module = cli.load_config_module(_ROOT / 'configs/quickstart.py')
  config = module.get_config()
  with config.unlocked():
    config.update(tasks=('numerals',), num_examples=5, batch_size=3)
    config.update(fields)
  return config


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  path = tmp_path_factory.mktemp('runs') / 'small'
  sweep.run(_config(), _CURVES, path)
  return path


def test_a_row_for_every_point(workdir):
  frame = pd.read_csv(workdir / 'summary.csv')
  assert list(frame.columns) == [
    'task',
    'method',
    'lenience',
    'gamma',
    'verification',
    'gate',
    'bonus_from',
    'drafts',
    'temperature',
    'n',
    'quality',
    'quality_low',
    'quality_high',
    'acceptance_rate',
    'rejection_rate',
    'deferral_rate',
    'block_efficiency',
    'verifier_calls_per_token',
    'drafter_calls_per_token',
    'relative_latency',
    'mean_output_tokens',
    'wall_s',
  ]
  assert len(frame) == 1 + 1 + 2 + 3 + 1 + 1 + 3 + 3 + 2
  assert (frame.n == 5).all()
  # A sequential cascade is simulated, so that its clock says nothing.
  sequential = frame.verification == 'sequential'
  assert sequential.sum() == 3
  assert frame.wall_s[sequential].isna().all()
  assert (frame.wall_s[~sequential] > 0).all()
  by_point = frame.set_index(
    [metrics.variants(frame), frame.lenience.fillna(9)]
  )
  # The verifier alone is the unit of cost.
  assert by_point.loc[('verifier_only', 9), 'relative_latency'] == 1
  costs = metrics.Costs.from_json((workdir / 'costs.json').read_text())
  assert by_point.loc[('drafter_only', 9), 'relative_latency'] == (
    pytest.approx(costs.drafter_token_s / costs.verifier_token_s)
  )
  for method in ('speed', 'token_v3'):
    assert by_point.loc[(method, 1.0), 'rejection_rate'] == 0
    assert by_point.loc[(method, 1.0), 'acceptance_rate'] == 1


def test_a_sequential_cascade_costs_what_it_would_call(workdir):
  costs = metrics.Costs.from_json((workdir / 'costs.json').read_text())
  verifier, drafter = costs.verifier_token_s, costs.drafter_token_s
  frame = pd.read_csv(workdir / 'summary.csv')
  frame = frame[frame.verification == 'sequential'].set_index('lenience')
  latency = frame.relative_latency
  # Always deferred: both models at every token; never: the drafter alone.
  assert latency[-1.0] == pytest.approx((verifier + drafter) / verifier)
  assert latency[1.0] == pytest.approx(drafter / verifier)
  for record in records.read_all(workdir):
    if record.verification == 'sequential':
      assert record.drafter_calls == len(record.tokens)
      assert record.verifier_calls == record.residual
      assert record.verifier_tokens <= len(record.tokens)


def test_cascades_of_answers_take_the_two_models_own(workdir):
  found = {}
  for record in records.read_all(workdir):
    key = record.method, record.lenience, record.id
    if math.isnan(record.lenience):
      key = record.method, None, record.id
    found[key] = record
  ids = [example for method, _, example in found if method == 'verifier_only']
  assert len(ids) == 5
  for example in ids:
    drafter = found['drafter_only', None, example]
    verifier = found['verifier_only', None, example]
    for method in ('sequence_mean', 'sequence_least'):
      strict = found[method, -1.0, example]
      assert (strict.tokens, strict.text) == (verifier.tokens, verifier.text)
      assert strict.drafter_calls == drafter.drafter_calls
      assert strict.verifier_calls == verifier.verifier_calls
      assert strict.verifier_tokens == verifier.verifier_calls
      assert strict.wall_s == pytest.approx(drafter.wall_s + verifier.wall_s)
      alone = found[method, 1.0, example]
      assert (alone.tokens, alone.text) == (drafter.tokens, drafter.text)
      assert alone.drafter_calls == drafter.drafter_calls
      assert alone.verifier_calls == alone.verifier_tokens == 0
      assert alone.wall_s == drafter.wall_s
    # Between the ends it is one or the other.
    middle = found['sequence_mean', 0.05, example]
    assert middle.tokens in (drafter.tokens, verifier.tokens)


@pytest.fixture
def measured(workdir, tmp_path):
  """A workdir whose unit costs are already there."""
  shutil.copy(workdir / 'costs.json', tmp_path)
  return tmp_path


def _count_decoded(config, curves, workdir):
  """Runs a sweep and names the curves that were decoded."""
  decoded, real = [], sweep.Decoder._decode

  def decode(self, curve):
    decoded.append(curve.name)
    return real(self, curve)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sweep.Decoder, '_decode', decode)
    sweep.run(config, curves, workdir)
  return decoded


@pytest.mark.parametrize('alone', ['first', 'last', 'never'])
def test_nothing_is_decoded_twice(measured, alone):
  plain = [Curve('verifier_only', ()), Curve('drafter_only', ())]
  answers = [
    Curve('sequence_mean', (-1.0, 1.0)),
    Curve('sequence_least', (0.5,)),
  ]
  curves = {
    'first': plain + answers,
    'last': answers + plain,
    'never': answers,
  }[alone]
  decoded = _count_decoded(_config(num_examples=3), curves, measured)
  assert sorted(decoded) == ['drafter_only', 'verifier_only']
  # Going on, only the drafter is asked again, for what no record holds.
  (measured / 'records/numerals-sequence_least.jsonl').unlink()
  decoded = _count_decoded(_config(num_examples=3), curves, measured)
  again = ['drafter_only', 'verifier_only'] if alone == 'never' else []
  assert sorted(decoded) == (again or ['drafter_only'])


def test_the_two_models_alone_draw_independently(measured):
  # Else one model's answers would be unlucky where the other's are.
  config = _config(verifier='tiny-drafter', temperature=2.0)
  sweep.run(config, _CURVES[:2], measured)
  texts = {'verifier_only': [], 'drafter_only': []}
  for record in records.read_all(measured):
    texts[record.method].append(record.text)
  assert texts['verifier_only'] != texts['drafter_only']


def test_records_are_whole_and_their_counts_add_up(workdir):
  found = records.read_all(workdir)
  assert len(found) == 5 * 17
  for record in found:
    metrics.check_counts(record)
    assert record.quality == record.scores['exact_match']
    assert ''.join(record.pieces) == record.text
  assert {r.id for r in found} == {f'numerals/test/0/{i}' for i in range(5)}
  rule = {r.method: r.deferred is not None for r in found}
  assert rule['token_v3']
  assert not rule['speed']
  assert not rule['sequence_mean']
  names = {p.name for p in (workdir / 'records').iterdir()}
  assert names == {
    'numerals-verifier_only.jsonl',
    'numerals-drafter_only.jsonl',
    'numerals-speed-gamma-4.jsonl',
    'numerals-token_v3-gamma-4.jsonl',
    'numerals-speed-block-gamma-2.jsonl',
    'numerals-speed-multi_round-2-drafts-gamma-2.jsonl',
    'numerals-chow-sequential-gamma-4.jsonl',
    'numerals-sequence_mean.jsonl',
    'numerals-sequence_least.jsonl',
  }


def test_any_drafter_can_be_swept(tmp_path, capsys):
  curves = [
    Curve('verifier_only', ()),
    Curve('drafter_only', ()),
    Curve('sequence_mean', (0.5,)),
    Curve('speed', (0.0,), 5),
    Curve('speed', (0.0,), 2, verification='match', drafts=3),
  ]
  config = _config(drafter='self:2', num_examples=3, tree_size=4)
  sweep.run(config, curves, tmp_path / 'own')
  said = capsys.readouterr().err
  assert 'self:2 cannot answer alone; left out drafter_only, sequ' in said
  frame = pd.read_csv(tmp_path / 'own/summary.csv')
  assert frame.drafts.tolist() == [1, 1, 3]
  assert (frame.relative_latency > 0).all()
  costs = metrics.Costs.from_json((tmp_path / 'own/costs.json').read_text())
  # Of three drafts of two tokens, four are read; a single one is read whole.
  assert set(costs.verify_s) == {4, 5}
  assert set(costs.drafts_s) == {3}
  for record in records.read_all(tmp_path / 'own'):
    metrics.check_counts(record)


def test_the_report_stands_beside_the_records(workdir):
  assert (workdir / 'report/index.html').stat().st_size > 10_000
  config = json.loads((workdir / 'config.json').read_text())
  assert config['verifier'] == 'tiny-verifier'
  assert [curve['method'] for curve in config['curves']] == [
    curve.method for curve in _CURVES
  ]
  assert config['curves'][4] == {
    'method': 'speed',
    'leniences': [0.5],
    'gamma': 2,
    'verification': 'block',
    'gate': 'raw',
    'bonus': 'target',
    'drafts': 1,
  }
  # The fields that the curves were made of would say something else.
  assert not {'method', 'lenience', 'gamma', 'gate'} & set(config)
  costs = json.loads((workdir / 'costs.json').read_text())
  assert set(costs['verify_s']) == {'2', '4'}
  assert config['versions']['jax']


def _answers(workdir):
  found = records.read_all(workdir)
  return {(r.point, r.id): (r.tokens, r.quality) for r in found}


def test_a_stopped_sweep_goes_on_and_ends_the_same(workdir, tmp_path):
  other = tmp_path / 'resumed'
  real, written = records.write, []

  def fail_on_third(path, lines):
    if len(written) == 2:
      raise KeyboardInterrupt
    written.append(path)
    real(path, lines)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(records, 'write', fail_on_third)
    with pytest.raises(KeyboardInterrupt):
      sweep.run(_config(), _CURVES, other)
  names = {p.name for p in (other / 'records').iterdir()}
  assert names == {p.name for p in written}
  assert not (other / 'summary.csv').exists()
  before = {p: p.stat().st_mtime_ns for p in written}
  sweep.run(_config(), _CURVES, other)
  assert before == {p: p.stat().st_mtime_ns for p in written}
  assert _answers(other) == _answers(workdir)


def test_another_runs_workdir_is_refused_by_field(workdir):
  with pytest.raises(ValueError, match='another batch_size, seed;'):
    sweep.run(_config(seed=1, batch_size=2), _CURVES, workdir)


@pytest.mark.parametrize(
  'change', [{'gamma': 2}, {'gate': 'processed'}, {'leniences': (0.0, 0.9)}]
)
def test_another_runs_curves_are_refused(workdir, change):
  curves = [*_CURVES]
  curves[2] = dataclasses.replace(curves[2], **change)
  with pytest.raises(ValueError, match='another curves;'):
    sweep.run(_config(), curves, workdir)


@pytest.mark.parametrize(
  ('curve', 'said'),
  [
    (Curve('cactus', (0.5,), 4, 'block'), "verification: cactus .* 'token'"),
    (Curve('speed', (0.5,), 4, 'sequential'), 'speed has none'),
    (Curve('chow', (0.5,), 4, 'blok'), "verification: 'blok' is not known"),
    (Curve('chow', (0.5,), 4, gate='cooked'), "gate: 'cooked'"),
    (Curve('chow', (0.5,), 4, bonus='none'), "bonus: 'none'"),
    (Curve('chow', (0.5,), -1), 'gamma: -1'),
    (Curve('chow', (0.5, math.nan), 4), 'lenience: nan'),
    (Curve('sequence_mean', (math.nan,)), 'lenience: nan'),
    (Curve('chow', (0.5, 0.1, 0.5), 4), 'chow gamma 4 has 0.5 twice'),
    (Curve('chow', (), 4), 'chow needs at least one'),
    (Curve('sequence_mean', ()), 'sequence_mean needs at least one'),
    (Curve('token_v3', (0.7,), 4), 'token_v3 gamma 4 is added twice'),
  ],
)
def test_what_cannot_be_run_is_refused_before_a_model_is_loaded(
  tmp_path, monkeypatch, curve, said
):
  def load(name):
    raise AssertionError(name)

  monkeypatch.setattr(checkpoints, 'load_model', load)
  with pytest.raises(ValueError, match=said) as caught:
    sweep.run(_config(), [*_CURVES, curve], tmp_path / 'w')
  assert str(caught.value).endswith('.')
  assert not (tmp_path / 'w').exists()


_SETS = pathlib.Path(__file__).parent / 'data/tasks'


@pytest.mark.parametrize(
  ('tasks', 'said', 'message'),
  [
    (('gsm8k', 'xsum'), {'path': 'a.jsonl'}, r'task\.path: a\.jsonl cannot'),
    (('gsm8k',), {'path': 'a.jsonl'}, r'path: a\.jsonl cannot be read'),
    (('gsm8k',), {'path': str(_SETS / 'gsm8k.jsonl'), 'shots': 9}, 'shots: 9'),
    (('numerals',), {'shots': 1}, 'task: numerals makes its problems up'),
  ],
  ids=['several', 'absent', 'shots', 'made-up'],
)
def test_a_set_is_looked_at_before_a_model_is_loaded(
  tmp_path, monkeypatch, tasks, said, message
):
  def load(name):
    raise AssertionError(name)

  monkeypatch.setattr(checkpoints, 'load_model', load)
  with pytest.raises(ValueError, match=message):
    sweep.run(_config(tasks=tasks, task=said), _CURVES[:1], tmp_path / 'w')
  assert not (tmp_path / 'w').exists()


def test_a_config_says_which_examples_of_a_set():
  path = str(_SETS / 'cnn_dailymail.jsonl')
  config = _config(tasks=('cnn_dailymail',), num_examples=1)
  config.task = ml_collections.ConfigDict(
    dict(path=path, shots=0, max_new_tokens=7)
  )
  (task,) = sweep.tasks_of(config).values()
  assert task.max_new_tokens == 7
  examples, data = sweep.load_examples(config, task)
  assert examples == list(task.load(num_examples=1, path=path, shots=0))
  assert data['shots'] == 0
  assert set(data['files']) == {'cnn_dailymail.jsonl'}
  assert data['scorer'].startswith('rouge-score:')
  # A config may be silent.
  config.task = ml_collections.ConfigDict(dict(path=path))
  (task,) = sweep.tasks_of(config).values()
  assert task.max_new_tokens == TASKS['cnn_dailymail'].max_new_tokens
  assert sweep.load_examples(config, task)[1]['shots'] == 1
  assert sweep.load_examples(_config(), TASKS['numerals'])[1] == {}


def test_a_task_without_a_metric_has_no_quality(measured):
  config = _config(tasks=('spec_bench',))
  config.task = ml_collections.ConfigDict(
    dict(path=str(_SETS / 'spec_bench.jsonl'), max_new_tokens=8)
  )
  sweep.run(config, _CURVES[:1], measured)
  frame = pd.read_csv(measured / 'summary.csv')
  assert frame.quality.isna().all()
  assert (frame.n == 4).all()
  assert (frame.mean_output_tokens <= 8).all()
  (data,) = json.loads((measured / 'config.json').read_text())['data'].values()
  assert list(data['files']) == ['spec_bench.jsonl']
  assert (measured / 'report/index.html').exists()


def test_batches_do_not_change_answers(workdir, measured):
  sweep.run(_config(batch_size=5), _CURVES[3:4], measured)
  whole, parts = _answers(measured), _answers(workdir)
  assert all(parts[key] == value for key, value in whole.items())


def test_an_interrupted_write_leaves_nothing(tmp_path):
  def lines():
    yield records.read_all  # Not a record: fails inside the write.

  with pytest.raises(AttributeError):
    records.write(tmp_path / 'records/a.jsonl', lines())
  assert list((tmp_path / 'records').glob('*')) == []


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    (['--config.gama=3'], 'gamma'),
    (['--config.gamma=-1'], 'gamma: -1'),
    (['--config.gamma=x'], 'config.gamma'),
    (['--config.method=token_v33'], "did you mean 'token_v3'"),
    (['--config.method=sequence_men'], 'also takes sequence_mean and'),
    (['--config.verification=blok'], "'blok' is not known"),
    (
      ['--config.method=cactus', '--config.verification=block'],
      'cactus verifies each token',
    ),
    (['--config.lenience=("nan",)'], 'lenience'),
    (['--config.tasks=("gsm9k",)'], "no task 'gsm9k'"),
    (['--config.num_examples=0'], 'num_examples: 0'),
    (['--workdir=/dev/null/x'], 'workdir: '),
    (['--config=configs/nothing.py'], 'nothing.py'),
    (['stray'], "'stray' is not a flag"),
  ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(arguments, said, tmp_path):
  command = [sys.executable, '-m', 'experiments.sweep']
  if not any(a.startswith('--config=') for a in arguments):
    command.append('--config=configs/quickstart.py')
  if not any(a.startswith('--workdir=') for a in arguments):
    command.append(f'--workdir={tmp_path / "w"}')
  done = subprocess.run(
    command + arguments, capture_output=True, text=True, cwd=_ROOT
  )
  assert done.returncode == 2
  assert said in done.stderr
  assert done.stderr.startswith('error: ')
  assert len(done.stderr.strip().split('\n')) == 1
  assert not (tmp_path / 'w').exists()


def test_plain_settings_survive_json():
  value = records.plain((-math.inf, 0.5))
  assert json.loads(json.dumps(value)) == ['-inf', 0.5]
  assert np.isinf(float(value[0]))


def test_a_batch_that_does_not_fit_is_said(tmp_path, capsys, monkeypatch):
  decode = decoding.decode

  def scarce(rows, *args, **options):
    if len(rows.length) > 2:
      raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory.')
    return decode(rows, *args, **options)

  monkeypatch.setattr(decoding, 'decode', scarce)
  sweep.run(_config(batch_size=4), _CURVES[:1], tmp_path / 'w')
  said = capsys.readouterr()
  assert 'memory: 4 rows at a time were too many for' in said.err
  assert 'going on with 2.' in said.err
  assert re.search(r'Rows kept busy: \d', said.out)
  frame = pd.read_csv(tmp_path / 'w' / 'summary.csv')
  assert (frame.n == 5).all()


def test_a_pair_that_does_not_fit_is_refused_before_it_is_loaded(
  tmp_path, monkeypatch
):
  def load(name):
    raise AssertionError(name)

  monkeypatch.setattr(checkpoints, 'load_model', load)
  monkeypatch.setattr(memory, 'available', lambda: 10**6)
  with pytest.raises(ValueError, match=r'memory: .* needs .* where 0\.0 GB'):
    sweep.run(_config(), _CURVES[:1], tmp_path / 'w')


def test_a_config_may_say_a_dtype(tmp_path, monkeypatch):
  # It reaches what is counted, and what is loaded.
  asked = []

  def note(fn):
    def noted(name, dtype=None, *rest):
      asked.append((fn.__name__, name, dtype))
      return fn(name, dtype, *rest)

    return noted

  def stop(*args, **options):
    raise InterruptedError

  for name in 'describe', 'load_model':
    monkeypatch.setattr(checkpoints, name, note(getattr(checkpoints, name)))
  monkeypatch.setattr(sweep.cli, 'versions', stop)
  for fields, dtype in ((dict(dtype='bfloat16'), 'bfloat16'), ({}, None)):
    asked.clear()
    with pytest.raises(InterruptedError):
      sweep.run(_config(**fields), _CURVES[:1], tmp_path / 'w')
    assert asked == [
      (fn, f'tiny-{which}', dtype)
      for fn in ('describe', 'load_model')
      for which in ('verifier', 'drafter')
    ]
  with pytest.raises(ValueError, match="dtype: 'half' will not do"):
    sweep.run(_config(dtype='half'), _CURVES[:1], tmp_path / 'w')


def test_chat_without_turns_is_refused(tmp_path):
  with pytest.raises(ValueError, match='chat: the tokenizer has no tokens of'):
    sweep.run(_config(chat=True), _CURVES[:1], tmp_path / 'w')


def test_a_mesh_that_there_is_not_is_refused(tmp_path):
  with pytest.raises(ValueError, match='mesh: 2 x 64 needs 128 devices'):
    sweep.run(_config(mesh=(2, 64)), _CURVES[:1], tmp_path / 'w')
