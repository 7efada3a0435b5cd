"""A sweep from config to report: small, whole, resumed and refused."""

import dataclasses
import errno
import functools
import json
import math
import os
import pathlib
import re
import shutil
import signal
import sys
import types

import counts
import jax
import launching
import numpy as np
import pandas as pd
import pytest
import small

from cascades import Conversation, decisions, decoding, drafters
from cascades.models import checkpoints, tokenizers
from cascades.sampler import predicting
from configs import common
from experiments import cli, records, sweep
from experiments.records import metrics, results_version, unit_costs
from experiments.reports import answers as page_answers
from experiments.sweeps import (
  curve_plan,
  plan,
  prediction,
  ray_cluster,
  workdirs,
  worker,
)
from experiments.sweeps.fields import RayFields, SweepConfig
from experiments.tasks import TASKS, Metric

_CURVES = [
  small.curve('verifier_only', ()),
  small.curve('drafter_only', ()),
  small.curve('speed', (0.0, 1.0), gamma=4),
  small.curve('token_v3', (-1.0, 0.5, 1.0), gamma=4),
  small.curve('speed', (0.0,), gamma=2, verification='multi_round', drafts=2),
  small.curve('chow', (-1.0, 0.1, 1.0), gamma=2),
  small.curve('sequence_mean', (-1.0, 0.05, 1.0)),
  small.curve('sequence_least', (-1.0, 1.0)),
]


def _run(workdir, curves=_CURVES, **fields):
  """Runs a sweep, and returns its summary."""
  sweep.run(small.config(**fields), curves, workdir)
  return pd.read_csv(workdir / 'summary.csv')


def _costs(workdir):
  text = (workdir / 'costs.json').read_text()
  return unit_costs.CostMeasurements.from_json(text).costs


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  path = tmp_path_factory.mktemp('runs') / 'small'
  _run(path)
  return path


# The default tier has the test of the next sweep.
@pytest.mark.slow
@pytest.mark.smoke
def test_a_sweep_of_two_points_ends_with_a_summary(tmp_path):
  frame = _run(tmp_path, [_CURVES[0], small.curve('token_v3', (0.5,))])
  assert list(frame.method) == ['verifier_only', 'token_v3']
  assert (frame.n == 5).all()
  assert (frame.failed == 0).all()
  assert _costs(tmp_path)


def test_a_row_for_every_point(workdir):
  frame = pd.read_csv(workdir / 'summary.csv')
  assert list(frame.columns) == metrics.SUMMARY_COLUMNS
  assert len(frame) == 1 + 1 + 2 + 3 + 1 + 3 + 3 + 2 + 3
  assert (frame.n == 5).all()
  assert (frame.failed == 0).all()
  # No clock timed these: they are counted from the records of chow.
  sequential = frame.verification == 'sequential'
  assert sequential.sum() == 3
  assert frame.wall_s[sequential].isna().all()
  assert (frame.wall_s[~sequential] > 0).all()
  variants = metrics.variants(frame)
  by_point = frame.set_index([variants, frame.lenience.fillna(9)])
  # The verifier alone is the unit of cost.
  latency, costs = by_point.relative_latency, _costs(workdir)
  assert latency['verifier_only', 9] == 1
  drafter = pytest.approx(costs.drafter_token_s / costs.verifier_token_s)
  assert latency['drafter_only', 9] == drafter
  assert by_point.block_efficiency['verifier_only', 9] == 1
  assert math.isnan(by_point.block_efficiency['drafter_only', 9])
  for method in ('speed', 'token_v3'):
    assert by_point.loc[(method, 1.0), 'rejection_rate'] == 0
    assert by_point.loc[(method, 1.0), 'acceptance_rate'] == 1
  # Always deferred: both models at every token; never: the drafter alone.
  assert latency['chow sequential', -1.0] - 1 == drafter
  assert latency['chow sequential', 1.0] == drafter
  for record in records.read_all(workdir):
    assert (record.deferrals is None) == (record.method != 'chow')
    if record.method == 'chow':
      assert record.deferred <= record.deferrals <= record.last_deferral
      assert record.last_deferral <= record.emitted


def test_cascades_of_answers_take_the_two_models_own(workdir):
  said = {}
  for record, trace in small.made(workdir):
    answers = said.setdefault((record.method, repr(record.lenience)), [])
    answers.append((record.text, trace.tokens))
  drafter = said['drafter_only', 'nan']
  verifier = said['verifier_only', 'nan']
  assert len(verifier) == 5
  for method in ('sequence_mean', 'sequence_least'):
    assert said[method, '-1.0'] == verifier
    assert said[method, '1.0'] == drafter
  # Between the ends it is one or the other.
  middle = said['sequence_mean', '0.05']
  for *both, between in zip(drafter, verifier, middle, strict=True):
    assert between in both


def _count_decoded(config, curves, workdir, meanwhile=None, **options):
  """Runs a sweep and names the curves that were decoded."""
  decoded, real = [], worker.Worker.decode_curve

  def decode(self, task, curve, *args):
    decoded.append(curve.name)
    for path, content in (meanwhile or {}).items():
      path.write_bytes(content)
    return real(self, task, curve, *args)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(worker.Worker, 'decode_curve', decode)
    sweep.run(config, curves, workdir, **options)
  return decoded


def _files(workdir, pattern='*'):
  """The records of its points, by name, with the moment they were written."""
  found = sorted((workdir / 'records').glob(pattern))
  return {path: path.stat().st_mtime_ns for path in found}


@pytest.mark.slow
def test_nothing_is_decoded_twice(tmp_path):
  rules = dict(sequence_mean=(-1.0, 1.0), sequence_least=(0.5,))
  curves = [small.curve(*rule) for rule in rules.items()]
  config = small.config(num_examples=3)
  # The models alone are added.
  decoded = _count_decoded(config, curves, tmp_path)
  assert sorted(decoded) == ['drafter_only', 'verifier_only']
  # Going on, what was decoded is all that is needed.
  (made,) = _files(tmp_path, 'numerals-sequence_least-*')
  content = made.read_bytes()
  made.unlink()
  assert _count_decoded(config, curves, tmp_path) == []
  assert made.read_bytes() == content
  # A shard makes the other points, while the first one is decoded.
  made = {x: x.read_bytes() for x in tmp_path.glob('[rt]*/*.jsonl*')}
  for path in made:
    path.unlink()
  assert len(_count_decoded(config, curves, tmp_path, meanwhile=made)) == 1


@pytest.mark.slow
def test_the_two_models_alone_draw_independently(tmp_path):
  # Else one model's answers would be unlucky where the other's are: of one
  # model, they would be the same.
  model = small.pair()[1]
  config = small.config(verifier=model, drafter=model, temperature=2.0)
  names = 'verifier_only', 'drafter_only'
  curves = [curve_plan.Curve.from_config(config, name, ()) for name in names]
  sweep.run(config, curves, tmp_path)
  verifier, drafter = (
    [r.text for r in records.read_all(tmp_path) if r.method == name]
    for name in names
  )
  assert verifier != drafter


def test_records_are_whole_and_their_counts_add_up(workdir):
  found = records.read_all(workdir)
  assert len(found) == 5 * 16
  for record, trace in small.made(workdir):
    counts.check(record, trace)
    assert record.quality == record.scores['exact_match']
    assert record.ended == (trace.tokens[-1] == tokenizers.EOS)
  rule = {r.method: r.deferred is not None for r in found}
  assert rule['token_v3']
  assert not rule['speed']
  assert not rule['sequence_mean']
  names = {p.name for p in (workdir / 'records').iterdir()}
  wanted = 'verifier_only drafter_only sequence_mean sequence_least'
  wanted += ' speed-gamma-4 token_v3-gamma-4 chow-gamma-2'
  wanted += ' speed-multi_round-2-drafts-gamma-2'
  pattern = r'numerals-(.*)-0-[0-9a-f]{16}\.jsonl'
  assert {re.fullmatch(pattern, x)[1] for x in names} == {*wanted.split()}
  traces = {p.name for p in (workdir / 'traces').iterdir()}
  assert traces == {f'{name}.gz' for name in names}
  ids = {r.id for r in found}
  assert ids == {f'numerals/test/0/{i}' for i in range(5)}
  assert set(records.read_examples(workdir)['numerals']) == ids


@pytest.mark.slow
def test_any_drafter_can_be_swept(tmp_path, capsys):
  config = small.config(drafter='self:1', num_examples=3, tree_size=4)
  several_drafts = dict(gamma=2, verification='match', drafts=3)
  curves = [
    *_CURVES[:2],
    small.curve('sequence_mean', (0.5,)),
    small.curve('speed', (0.0,), gamma=5),
    curve_plan.Curve.from_config(config, 'speed', (0.0,), **several_drafts),
  ]
  sweep.run(config, curves, tmp_path / 'own')
  message = capsys.readouterr().err
  assert 'self:1 cannot answer alone; the sweep leaves out drafter_o' in message
  frame = pd.read_csv(tmp_path / 'own/summary.csv')
  assert frame.drafts.tolist() == [1, 1, 3]
  assert (frame.relative_latency > 0).all()
  costs = _costs(tmp_path / 'own')
  # Of three drafts of two tokens, four are read; a single one is read whole.
  assert set(costs.verify_s) == {4, 5}
  assert set(costs.drafts_s) == {3}
  for record in records.read_all(tmp_path / 'own'):
    counts.check(record)
  _run(tmp_path / 'copy', [_CURVES[2]], drafter='ngram', num_examples=1)


@pytest.mark.slow
def test_arms_are_timed_against_each_other_once(tmp_path, monkeypatch):
  raced, real = [], worker.Worker.race

  def race(self, *args):
    raced.append(args)
    return real(self, *args, turns=1)

  monkeypatch.setattr(worker.Worker, 'race', race)
  config = small.config(clock=2)
  curves = [*_CURVES[:2], small.curve('speed', (0.0, 0.5))]
  sweep.run(config, curves, tmp_path / 'w')
  found = records.read(tmp_path / 'w/race.jsonl')
  ids_by_entrant = {}
  for r in found:
    counts.check(r)
    assert 0 < r.wall_s < 60
    ids_by_entrant.setdefault((r.method, repr(r.lenience)), []).append(r.id)
  assert {x for x, _ in ids_by_entrant} == {curve.method for curve in curves}
  assert ('speed', '0.0') in ids_by_entrant
  ids = [f'numerals/test/0/{i}' for i in range(2)]
  assert all(requested == ids for requested in ids_by_entrant.values())
  # The same answers as in a batch.
  of_sweep = {(r.point, r.id): r.text for r in records.read_all(tmp_path / 'w')}
  assert all(of_sweep[r.point, r.id] == r.text for r in found)
  sweep.run(config, curves, tmp_path / 'w')
  assert len(raced) == 1
  # New unit costs may name other arms.
  (tmp_path / 'w/costs.json').unlink()
  sweep.run(config, curves, tmp_path / 'w')
  assert len(raced) == 2
  page = (tmp_path / 'w/report/index.html').read_text(encoding='utf-8')
  assert 'Measured and modelled speed-ups' in page


def test_the_report_stands_beside_the_records(workdir):
  assert (workdir / 'report/index.html').stat().st_size > 10_000
  config = small.read_json(workdir / 'config.json')
  assert config['verifier'] == small.pair()[0]
  found = [curve['method'] for curve in config['curves']]
  assert found == [curve.method for curve in _CURVES]
  own = {'method': 'speed', 'leniences': [0.0], 'gamma': 2}
  own |= {'verification': 'multi_round', 'drafts': 2}
  assert config['curves'][4] == records.OPTIONS | own
  # The fields that the curves were made of would say something else.
  assert not {'method', 'lenience', 'gamma', 'gate'} & set(config)
  # Measured as it began, and as it ended.
  start, end = small.read_json(workdir / 'costs.json')['times']
  for measured in (start, end):
    assert set(measured['low']['verify_s']) == {'2', '4'}
  (start,) = small.read_json(workdir / 'provenance.json')['starts']
  assert start['versions']['jax']
  assert start['seed'] == 0
  assert start['data']['numerals']['examples'] == 5
  assert {'command', 'commit', 'dirty', 'device', 'code'} <= set(start)
  assert start['started'] <= start['ended']


def test_five_answers_are_shown(workdir):
  shown = page_answers.read(
    workdir, records.read_points(workdir), lambda _, part, *args: part(*args)
  )
  assert [x['record'].variant for x in shown] == ['token_v3'] * 5
  page = (workdir / 'report/index.html').read_text()
  emitted = sum(x['record'].emitted for x in shown)
  assert page.count('<span class="t ') - 3 == emitted


def test_a_point_that_is_not_whole_is_named_and_made_again(tmp_path):
  config = small.config(num_examples=3)
  curves = [_CURVES[0], small.curve('sequence_mean', (-1.0, 1.0))]
  sweep.run(config, curves, tmp_path)
  want = small.answers(tmp_path)
  (path,) = _files(tmp_path, '*sequence_mean*')
  content = path.read_bytes()
  for damaged, message in (
    (content[:-9], 'damaged record .*; delete the file, and run the sweep'),
    (content[: content.rindex(b'\n', 0, -1) + 1], 'lacks lines; delete it'),
  ):
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=message):
      sweep.run(config, curves, tmp_path)
  (tmp_path / 'traces' / f'{path.name}.gz').unlink()
  assert _count_decoded(config, curves, tmp_path) == []
  assert small.answers(tmp_path) == want


@pytest.mark.slow
def test_a_sweep_goes_on_after_a_full_disk_and_ends_the_same(workdir, tmp_path):
  other = tmp_path / 'resumed'
  real = os.fsync

  def full_after_two(handle):
    if len(list(other.glob('records/*'))) == 3:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    real(handle)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(os, 'fsync', full_after_two)
    with pytest.raises(OSError, match='No space left') as full:
      _run(other)
  # The third record was begun; of what was not whole nothing is left.
  assert cli._sentence(full.value).endswith(
    'No space left on device. Free space, then run it again.'
  )
  assert pathlib.Path(full.value.filename).parent == other / 'records'
  assert not list(other.rglob('*.part'))
  written = _files(other)
  assert len(written) == 2
  assert not (other / 'summary.csv').exists()
  _run(other)
  assert written.items() <= _files(other).items()
  assert small.answers(other) == small.answers(workdir)
  assert {p.name for p in _files(other)} == {p.name for p in _files(workdir)}
  assert len(records.read_starts(other)) == 2


@pytest.mark.slow
def test_points_are_shards_and_more_examples_add_some(workdir, tmp_path):
  curves = [_CURVES[0], _CURVES[3]]
  _run(tmp_path, curves, shard_size=2, num_examples=4)
  before = _files(tmp_path)
  (tmp_path / 'config.json').unlink()
  assert _run(tmp_path, curves, shard_size=2).n.tolist() == [5] * 4
  assert before.items() <= _files(tmp_path).items()
  names = [path.name.rsplit('-', 2)[1] for path in _files(tmp_path, '*v3*')]
  assert names == ['0', '2', '4']
  batched, parts = small.answers(workdir), small.answers(tmp_path)
  assert len(parts) == 5 * 4
  for key, (record, trace) in parts.items():
    record_, trace_ = batched[key]
    assert record == record_
    # In a batch of another size sums may be rounded in another order.
    close = {x: y for x, y in vars(trace).items() if x.endswith('logprobs')}
    for name, values in close.items():
      assert values == pytest.approx(getattr(trace_, name), abs=2e-5)
    assert trace == dataclasses.replace(trace_, **close)


def test_shards_leave_plan_and_points_of_others(tmp_path, monkeypatch):
  curves = [*_CURVES[:2], small.curve('sequence_mean', (0.5,))]
  config = small.config(num_examples=3)
  run = functools.partial(_count_decoded, config, curves)
  with pytest.raises(ValueError, match=r'^shard: cannot be .* --fresh; delete'):
    run(tmp_path / 'a', shard=(0, 2), fresh=True)
  assert run(tmp_path / 'a', shard=(1, 2)) == ['drafter_only']
  assert run(tmp_path / 'a', shard=(0, 2)) == ['verifier_only']
  with monkeypatch.context() as patch:
    patch.setattr(workdirs, '_git', lambda *arguments: 'another')
    assert run(tmp_path / 'a') == []
  assert len(_files(tmp_path / 'a')) == 3
  assert len(records.read_starts(tmp_path / 'a')) == 3
  kept = tmp_path / 'a/config.json', tmp_path / 'a/costs.json'
  before = [path.stat().st_mtime_ns for path in kept]
  with monkeypatch.context() as patch:
    patch.setattr(results_version, 'RESULTS_VERSION', 99)
    message = 'another device, data or versions; .* or delete it'
    with pytest.raises(ValueError, match=message):
      run(tmp_path / 'a', shard=(0, 2))
  assert [path.stat().st_mtime_ns for path in kept] == before


def test_predicted_values_are_those_of_the_plan(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(predicting, 'RULES', ('speed', 'token_v3'))
  monkeypatch.setattr(predicting, 'LENIENCES', (0.0, 0.5))
  monkeypatch.setattr(worker.Worker, '_forget', lambda self: None)
  monkeypatch.setattr(worker, 'COST_GAMMAS', (2, 4))
  config = small.config(num_examples=3)
  several = dict(verification='multi_round', drafts=2)
  curves = ('token_v3', (0.5, 1.0), {}), ('speed', (0.0,), several)
  added = lambda add: [add(*x, 'predicted', **y) for *x, y in curves]  # noqa: E731
  module = types.SimpleNamespace(sweep=added)
  replan = functools.partial(curve_plan.plan_curves, config, module, {})
  options = dict(config=config, curves=replan(), replan=replan)
  run = functools.partial(_count_decoded, workdir=tmp_path, **options)
  monkeypatch.setattr(prediction, 'GOAL', (2, 3000))
  # The first shard to come predicts, whatever its points are.
  first = run(shard=(1, 2))
  file = tmp_path / 'config.json'
  saved = small.read_json(file)['curves']
  assert saved[0]['method'] == 'verifier_only'
  assert sorted(lam for x in saved[1:] for lam in x['leniences']) == [0, 0.5, 1]
  assert {x['gamma'] for x in saved[1:]} <= {2, 4}
  before = file.read_bytes()
  rest = run(shard=(0, 2)) + run()
  assert sorted(first + rest) == sorted({*first, *rest})
  assert len(rest) == len(saved) - len(first)
  assert run() == []
  assert file.read_bytes() == before
  said = capsys.readouterr().err
  assert 'numerals, predicted: Compared with the verifier alone' in said
  rows = re.findall(r'^ *(?:speed|token_v3) .*', said, re.MULTILINE)
  assert 3 <= len(rows) == len({*rows})
  page = (tmp_path / 'report/index.html').read_text()
  assert 'lines are predicted: both models' in page
  # Decoded answers of a rule show the error of its prediction.
  files = [tmp_path / f'{name}.csv' for name in ('predicted', 'corrected')]
  before, after = (pd.read_csv(x).query('gamma == 2') for x in files)
  wider = after[after.high / after.low > before.high / before.low + 1e-6]
  assert wider.set_index('method').lenience['token_v3'].tolist() == [0.0, 0.5]
  assert len(run(fresh=True)) == len(saved)
  options['config'] = small.config(drafter='ngram')
  with pytest.raises(ValueError, match='predicted: needs a drafter that is a'):
    sweep.run(workdir=tmp_path / 'a', **options)


def test_ray_decodes_shards_and_passes_on_errors(tmp_path, monkeypatch):
  commands, ray = [], types.SimpleNamespace(exceptions=types.SimpleNamespace())
  ray.exceptions.RayTaskError = type('RayTaskError', (Exception,), {})
  ray.exceptions.RayError = type('RayError', (Exception,), {})
  ray.cluster_resources = lambda: {'CPU': 2}
  remote = lambda folder, command: commands.append(command) or command  # noqa: E731
  ray.remote = lambda **options: lambda fn: types.SimpleNamespace(remote=remote)
  ray.wait = lambda refs, timeout: (refs, [])
  ray.get = lambda ref: ''
  monkeypatch.setattr(ray_cluster, '_connect', lambda address: ray)
  monkeypatch.setattr(sys, 'argv', ['sweep'])
  options = RayFields(cpus=1)
  ray_cluster.run(options, tmp_path, 2, quiet=True)
  ends = [x[x.index('--quiet') + 2 :] for x in commands]
  assert ends == [['--shard=1/2'], ['--shard=2/2'], []]

  def lose(ref):
    raise ray.exceptions.RayError('no memory')

  ray.get = lose
  with pytest.raises(ValueError, match=r'RayError: no memory\); the same'):
    ray_cluster.run(options, tmp_path, 2, quiet=True)


def test_answers_of_experts_are_named_by_the_batch(monkeypatch):
  monkeypatch.setattr(decisions, 'weights', lambda *pair: {})
  new = types.SimpleNamespace

  def is_named(*mixed):
    modules = [new(config=new(enable_moe=x)) for x in mixed]
    pair = [new(params={}, model=new(module=x)) for x in modules]
    loaded = new(_config=SweepConfig.convert(small.config()))
    loaded._verifier, loaded._bound_drafter = pair
    loaded._drafter = new(checkpoint=pair[1])
    return 'batch_size' in worker.Worker.facts(loaded)

  assert is_named(True, False)
  assert is_named(False, True)
  assert not is_named(False, False)


def test_a_config_beside_the_code_changes_no_code(tmp_path, monkeypatch):
  monkeypatch.setattr(workdirs, '_ROOT', tmp_path)
  (tmp_path / 'code.py').touch()
  workdirs._git('init')
  workdirs._git('add', 'code.py')
  author = '-c', 'user.name=a', '-c', 'user.email=a'
  assert workdirs._git(*author, 'commit', '-m', 'a')
  (tmp_path / 'my_config.py').touch()
  assert workdirs.provenance({})['dirty'] is False
  (tmp_path / 'code.py').write_text('1')
  assert workdirs.provenance({})['dirty'] is True


@pytest.mark.slow
def test_points_of_other_code_are_left_out(tmp_path, monkeypatch, capsys):
  run = functools.partial(_count_decoded, small.config(clock=1), _CURVES[:1])
  costs = tmp_path / 'costs.json'
  assert run(tmp_path) == ['verifier_only']
  (old,), before = _files(tmp_path), costs.stat().st_mtime_ns
  assert run(tmp_path) == []
  assert costs.stat().st_mtime_ns == before
  assert run(tmp_path, fresh=True) == ['verifier_only']
  assert costs.stat().st_mtime_ns > before
  before = costs.stat().st_mtime_ns
  capsys.readouterr()
  monkeypatch.setattr(workdirs, '_git', lambda *arguments: 'another')
  monkeypatch.setattr(results_version, 'RESULTS_VERSION', 99)
  assert run(tmp_path) == ['verifier_only']
  assert costs.stat().st_mtime_ns > before
  said = capsys.readouterr().err
  assert 'workdir: 1 points of other weights' in said
  assert '--fresh decodes them again' not in said
  assert old in _files(tmp_path)
  (name,) = records.read_points(tmp_path)
  assert name != old.stem
  assert run(tmp_path) == []
  assert '1 points are of another commit' in capsys.readouterr().err
  # Another config may take the folder, if that is meant.
  sweep.run(small.config(seed=1), _CURVES[:1], tmp_path, fresh=True)
  assert len(_files(tmp_path)) == 3
  # So may the first one, whose points are still there.
  capsys.readouterr()
  assert run(tmp_path, fresh=True) == []
  said = capsys.readouterr().err
  assert 'had another seed; all points are kept' in said
  assert run(tmp_path, fresh=True) == ['verifier_only']
  assert len(_files(tmp_path)) == 3


_RULE = """
from cascades import methods

METHOD = methods.from_target(
  lambda d, lenience: d.p * {0} / {0}, name='outside', equation='',
  reference='', strict=0.0, drafter_only=None)

def score(answer, reference):
  return {0}
"""


def test_code_from_outside_is_named_by_its_file(tmp_path):
  def names(text):
    path = tmp_path / 'my_rule.py'
    path.write_text(text)
    module = cli.load_config_module(path)
    config = _CURVES[3].config.replace(method=module.METHOD)
    curve = dataclasses.replace(_CURVES[3], config=config)
    metric = Metric(name='m', help='', scores=('s',), score=module.score)
    task = TASKS['numerals']
    scored = dataclasses.replace(task, name='mine', metrics=[metric])
    examples = list(task.load(num_examples=2))
    return [
      plan.plan_points({}, [x], {y.name: y}, {y.name: examples}, {})[0].name
      for x, y in ((curve, task), (_CURVES[3], scored))
    ]

  first = names(_RULE.format(1.0))
  assert names(_RULE.format(1.0)) == first
  assert not {*first} & {*names(_RULE.format(0.5))}
  # The library's own add nothing.
  task = TASKS['numerals']
  assert not any(plan._outside(x, 'ngram', task) for x in _CURVES)


def test_whatever_can_change_a_result_names_another_point():
  facts = {'verifier': 'a', 'device': 'cpu'}
  tasks = {'numerals': TASKS['numerals']}
  examples = {'numerals': list(TASKS['numerals'].load(num_examples=3))}

  def name(facts=facts, curve=_CURVES[3], **fields):
    given = small.config().to_dict() | fields
    (point,) = plan.plan_points(given, [curve], tasks, examples, facts)
    return point.name

  before = name()
  assert name() == before
  assert name(num_examples=99, shard_size=7, wandb=True) == before
  # Where answers depend on it, the batch size is a fact.
  assert name(batch_size=9) == before
  other = dataclasses.replace(_CURVES[3], leniences=(-1.0, 0.5, 0.9))
  changed = [
    *(name(facts | {fact: 'b'}) for fact in (*facts, 'batch_size')),
    name(seed=1),
    name(curve=other),
  ]
  assert len({before, *changed}) == 6


def test_a_changed_weight_changes_the_fingerprint():
  params = {'a': np.arange(6, dtype=np.float32).reshape(2, 3)}
  params['b'] = np.zeros(2, np.float16)
  before = decisions.fingerprint(params)
  assert decisions.fingerprint(params) == before
  for change in (
    {'a': params['a'].reshape(3, 2)},
    {'a': params['a'][::-1]},
    {'a': np.nextafter(params['a'], np.float32(9))},
    {'b': np.array([0, -0.0], np.float16)},
  ):
    assert decisions.fingerprint(params | change) != before


@pytest.mark.slow
def test_settings_of_a_model_are_among_its_facts(tmp_path):
  """Two folders of the same weights, one of which has another config.json."""
  folder = shutil.copytree(small.pair()[0], tmp_path / 'other')
  found = []
  for window, template in ((512, 'a'), (256, 'a'), (256, 'b')):
    small.rewrite(folder, {'sliding_window': window})
    (folder / 'chat_template.jinja').write_text(template)
    model = checkpoints.load_model(str(folder))
    bound = drafters.bind_drafter(model, model)
    found.append(decisions.weights(model, bound))
  assert len({weights['verifier'] for weights in found}) == 1
  assert len({weights['settings'] for weights in found}) == 3


def test_two_runs_at_once_are_refused(tmp_path):
  message = 'workdir: another process is using .*; wait'
  with (
    workdirs.Workdir(tmp_path).lock(),
    pytest.raises(ValueError, match=message),
    workdirs.Workdir(tmp_path).lock(),
  ):
    pass
  with workdirs.Workdir(tmp_path).lock():
    configs = dict(train='train_recurrent', benchmark='benchmark')
    for command, config in configs.items():
      flags = f'--config=configs/{config}.py', f'--workdir={tmp_path}'
      done = launching.run(f'experiments.{command}', *flags)
      assert done.returncode == 2
      assert 'another process is using' in done.stderr


@pytest.mark.slow
def test_examples_that_cannot_be_answered_are_failures(tmp_path, monkeypatch):
  task = TASKS['numerals']
  examples = list(task.load(num_examples=5))
  long = dataclasses.replace(examples[1], prompt=examples[1].prompt * 99)
  failures = {
    examples[2].reference: 'ZeroDivisionError: nothing',
    examples[3].reference: 'SystemExit: 3',
    examples[4].reference: 'ValueError: exact_match is nan',
  }

  def score(answer, reference):
    if reference == examples[2].reference:
      raise ZeroDivisionError('nothing')
    if reference == examples[3].reference:
      raise SystemExit(3)
    nan = {'exact_match': math.nan}
    return nan if reference in failures else task.score(answer, reference)

  metric = Metric(name='odd', help='', scores=('exact_match',), score=score)
  read = lambda *_, **__: ([examples[0], long, *examples[2:]], {})  # noqa: E731
  monkeypatch.setattr(type(task), 'read', read)
  odd = dataclasses.replace(task, metrics=(metric,))
  monkeypatch.setitem(TASKS, 'numerals', odd)
  config = small.config(cache_length=256, num_examples=5)
  make = functools.partial(curve_plan.Curve.from_config, config)
  curves = [make('verifier_only', ()), make('drafter_only', ())]
  curves.append(make('sequence_mean', (-1.0, 0.05, 1.0)))
  curves.append(make('chow', (1.0,)))
  sweep.run(config, curves, tmp_path)
  frame = pd.read_csv(tmp_path / 'summary.csv')
  assert (frame.n == 1).all()
  assert (frame.failed == 4).all()
  for record, trace in small.made(tmp_path):
    counts.check(record, trace)
    if record.id == long.id:
      assert re.search('its .* tokens .* do not fit', record.failure)
    elif record.failure:
      reference = {x.id: x.reference for x in examples}[record.id]
      assert record.failure == f'score: {failures[reference]}'
    else:
      assert record.failure is None
  assert (tmp_path / 'report/index.html').exists()


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tmp_path):
  real = worker.Worker.decode_curve

  def decode(self, task, curve, *args):
    if curve.baseline_model == 'drafter':
      os.kill(os.getpid(), signal.SIGINT)
    return real(self, task, curve, *args)

  config, curves = small.config(num_examples=2), _CURVES[:2]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(worker.Worker, 'decode_curve', decode)
    said = '1 of 2 points are done; the same command without --fresh resumes'
    with pytest.raises(cli.StoppedError, match=said):
      sweep.run(config, curves, tmp_path, fresh=True)
  assert len(_files(tmp_path)) == 1
  assert _count_decoded(config, curves, tmp_path) == ['drafter_only']


@pytest.mark.parametrize(
  ('fields', 'curve', 'message'),
  [
    (dict(seed=1, batch_size=2), _CURVES[2], 'another seed;'),
    ({}, small.curve('speed', (0.0, 1.0), gamma=2), 'another curves;'),
    ({}, small.curve('speed', (0.0, 1.0), bonus='verifier'), 'another curves;'),
    ({}, small.curve('speed', (0.0, 0.9)), 'another curves;'),
  ],
)
def test_another_runs_workdir_is_refused(workdir, fields, curve, message):
  curves = [*_CURVES]
  curves[2] = curve
  with pytest.raises(ValueError, match=message):
    _run(workdir, curves, **fields)


@pytest.mark.parametrize(
  ('method', 'leniences', 'own', 'said'),
  [
    ('chow', (0.5,), {'temperature': 0.0}, 'temperature is not an option'),
    ('chow', (0.5, math.nan), {}, 'lenience: must be a number .* got nan'),
    ('sequence_mean', (math.nan,), {}, 'lenience: must be a number .* got nan'),
    ('chow', (), {}, 'chow needs at least one'),
    ('sequence_mean', (), {}, 'sequence_mean needs at least one'),
  ],
)
def test_what_a_curve_cannot_be_is_said_at_once(method, leniences, own, said):
  def added(add):
    add('token_v3', (0.5,))
    add(method, leniences, **own)

  module = types.SimpleNamespace(sweep=added)
  with pytest.raises(ValueError, match=said) as caught:
    curve_plan.plan_curves(small.config(), module, {})
  assert str(caught.value).endswith('.')


_SETS = pathlib.Path(__file__).parent / 'data/tasks'
_GSM8K = {'path': str(_SETS / 'gsm8k.jsonl'), 'shots': 9}
_ABSENT = {'path': 'a.jsonl'}
# Fields of a config by what is said of them; more of one field are in
# fields_test, of curves together in configs_test.
_REFUSED = {
  r'path: a\.jsonl cannot be read': dict(tasks=('gsm8k', 'xsum'), task=_ABSENT),
  'shots: must be from 0 to 8 .* got 9': dict(tasks=('gsm8k',), task=_GSM8K),
  'mesh: must be two numbers .* got 2 x 64': dict(mesh=(2, 64)),
}


@pytest.mark.parametrize('message', _REFUSED)
def test_no_model_is_loaded_for_what_is_refused(tmp_path, monkeypatch, message):
  # The pair's tokenizer is a bundled model's.
  small.pair()
  monkeypatch.setattr(checkpoints, 'load_model', None)
  with pytest.raises(ValueError, match=message) as caught:
    sweep.run(small.config(**_REFUSED[message]), _CURVES[:1], tmp_path / 'w')
  assert str(caught.value).endswith('.')
  assert not (tmp_path / 'w').exists()


def test_a_tokenizer_without_turns_cannot_chat(tmp_path):
  with pytest.raises(ValueError, match='chat: apply_chat_template is not'):
    _run(tmp_path / 'w', _CURVES[:1], chat=True)


def test_a_config_says_which_examples_of_a_set():
  path = str(_SETS / 'cnn_dailymail.jsonl')
  # A table may be silent.
  for table, tokens, shots in (
    (dict(shots=0, max_new_tokens=7), 7, 0),
    ({}, TASKS['cnn_dailymail'].max_new_tokens, 1),
  ):
    fields = dict(tasks=('cnn_dailymail',), task=table | dict(path=path))
    config = small.config(num_examples=1, **fields)
    (task,) = plan.configured_tasks(config).values()
    assert task.max_new_tokens == tokens
    examples, data = plan.load_examples(config, task)
    assert examples == list(task.load(num_examples=1, path=path, shots=shots))
    assert data['shots'] == shots
    assert set(data['files']) == {'cnn_dailymail.jsonl'}
    assert data['scorer'].startswith('rouge-score:')
  data = plan.load_examples(small.config(), TASKS['numerals'])[1]
  assert data == {'metric': 'exact_match', 'scale': 1.0}


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_said(tmp_path, capsys, monkeypatch):
  decode = decoding.decode

  def scarce(rows, *args, **options):
    if len(rows.length) > 2:
      raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory.')
    return decode(rows, *args, **options)

  # As in bfloat16, an answer depends on its batch.
  monkeypatch.setattr(worker, '_EXACT', set())
  run = functools.partial(_run, tmp_path, _CURVES[:2], batch_size=4)
  run()
  page = tmp_path / 'report/index.html'
  mixed = 'in 1 of 2 points, memory was enough for batches of 2 rows'
  assert mixed not in capsys.readouterr().out + page.read_text()
  next(tmp_path.glob('records/*drafter_only*')).unlink()
  monkeypatch.setattr(decoding, 'decode', scarce)
  assert (run().n == 5).all()
  said = capsys.readouterr()
  assert mixed in said.out
  assert mixed in page.read_text()
  assert 'memory: a batch of 4 rows was too large for' in said.err
  assert 'the next batches have 2 rows.' in said.err


def test_a_config_may_say_a_dtype(tmp_path, monkeypatch):
  pair, requested = small.pair(), []

  def note(name, dtype=None, *_):
    requested.append((name, dtype))
    if len(requested) == 2:
      raise InterruptedError

  monkeypatch.setattr(checkpoints, 'load_model', note)
  for fields, dtype in ((dict(dtype='bfloat16'), 'bfloat16'), ({}, None)):
    requested.clear()
    with pytest.raises(InterruptedError):
      _run(tmp_path / 'w', _CURVES[:1], **fields)
    assert requested == [(name, dtype) for name in pair]


def _write(path, rows):
  path.write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  return str(path)


def _file_config(path, cache_length=4096, **fields):
  options = dict(temperature=0, cache_length=cache_length)
  config = common.sweep('file', 'task', 'clock', 'split', **options)
  with config.unlocked():
    config.verifier, config.drafter = small.pair()
    config.update(tasks=('file',), batch_size=4, clock=0, split='all')
    config.update(file={'path': path} | fields, task={'max_new_tokens': 8})
  return config


def _names(config):
  """Names of the points of a config."""
  tasks = plan.configured_tasks(config)
  examples = {k: plan.load_examples(config, x)[0] for k, x in tasks.items()}
  points = plan.plan_points(
    config.to_dict(), _CURVES[:2], tasks=tasks, examples=examples, facts={}
  )
  return {point.name for point in points}


def test_points_are_named_by_what_changes_records(tmp_path):
  rows = [{'prompt': f'{n}', 'reference': f'{n}'} for n in range(4)]
  path = _write(tmp_path / 'a.jsonl', rows)
  config = _file_config(path, metric='exact_match')
  with config.unlocked():
    config.shard_size = 2
  names = _names(config)
  config.file.path = _write(tmp_path / 'b.jsonl', rows)
  assert _names(config) == names
  _write(tmp_path / 'b.jsonl', [*rows[:3], rows[3] | {'reference': 'x'}])
  assert len(_names(config) & names) == len(names) / 2
  for metric in ('chrf', 'rouge2', 'regex:a', 'regex:b'):
    config.file.metric = metric
    assert not _names(config) & names
    names |= _names(config)


def test_settings_have_no_paths_of_files():
  config = _file_config('https://user:secret@host/a.jsonl?token=secret')
  config.file.examples = '/home/user/b.jsonl'
  settings = plan.run_settings(SweepConfig.convert(config), [], {})
  assert 'secret' not in str(settings)
  assert '/home' not in str(settings)
  assert settings['file']['prompt'] == 'prompt'
  assert config.file.examples == '/home/user/b.jsonl'


def test_short_flags_are_read_or_refused():
  words = '--data=a.csv', '-metric', '--drafter', '--datas=3', '--task=data'
  assert [*map(sweep.long_flag, words)] == [
    *('--config.file.path=a.csv', '--config.file.metric', '--config.drafter'),
    *words[3:],
  ]
  assert sweep._parse_shard('2/4') == (1, 4)
  for text in ('0/4', '0/0', '5/4', '2', '2/', 'a/4'):
    with pytest.raises(ValueError, match=r'^shard: must be such as 1/4'):
      sweep._parse_shard(text)


@pytest.mark.slow
def test_messages_are_swept_with_the_template_of_the_model(tmp_path):
  models = []
  for name, folder in zip(('p', 'q'), small.pair(), strict=True):
    models.append(shutil.copytree(folder, tmp_path / name))
    (models[-1] / 'chat_template.jinja').write_text(
      '{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}'
      '{% if add_generation_prompt %}assistant:{% endif %}'
    )
  turns = [('user', 'one two'), ('assistant', 'three'), ('user', 'four')]
  messages = [dict(zip(('role', 'content'), x, strict=True)) for x in turns]
  answer = {'role': 'assistant', 'content': 'five'}
  rows = [{'messages': messages}, {'messages': [*messages, answer]}]
  config = _file_config(_write(tmp_path / 'a.jsonl', rows))
  with config.unlocked():
    config.chat, config.verifier, config.drafter = True, *map(str, models)
  make = functools.partial(curve_plan.Curve.from_config, config)
  curves = [make('verifier_only', ()), make('speed', (0.0,), gamma=4)]
  sweep.run(config, curves, tmp_path / 'run')
  examples = records.read_examples(tmp_path / 'run')['file']
  assert {x.prompt for x in examples.values()} == {Conversation(turns)}
  assert {x.reference for x in examples.values()} == {(), 'five'}
  assert len({r.text for r in records.read_all(tmp_path / 'run')}) == 1
  assert 'user: four' in (tmp_path / 'run/report/index.html').read_text()
  # A file may grow: its points are other ones, and so are costs and the race.
  costs = tmp_path / 'run/costs.json'
  before = costs.stat().st_mtime_ns
  _write(tmp_path / 'a.jsonl', [*rows, {'messages': messages[:1]}])
  sweep.run(config, curves, tmp_path / 'run')
  assert len(records.read_all(tmp_path / 'run')) == 2 * 3
  assert len(_files(tmp_path / 'run')) == 4
  assert costs.stat().st_mtime_ns > before
