"""Points estimated from another: by every text, by simulation, as a command."""

import collections
import functools
import itertools
import math
import shutil

import jax
import launching
import numpy as np
import pandas as pd
import pytest
import small

from cascades import methods, verification
from cascades.methods import processing
from cascades.models import checkpoints
from cascades.proof import exact
from cascades.sampler import sampler, scoring
from cascades.scheme import BONUS, DRAFT, RESIDUAL
from experiments import records, sweep
from experiments.analysis import estimates, reweighting, runs
from experiments.analysis.choice import Choice
from experiments.sweeps import plan, rereading

_MODEL = exact.TableModel(3)
_PROMPT = (1, 2)
# The last token ends a text, which has four at the most.
_END, _MOST, _GAMMA = 2, 4, 2
# Each method at two leniences at which it has other laws.
_LENIENCES = {
  'chow': (0.2, 0.6),
  'diff': (0.0, 0.3),
  'opt': (0.1, 0.8),
  'token_v1': (0.1, 0.6),
  'token_v3': (0.3, 0.8),
  'speed': (0.2, 0.7),
  'lossy': (0.2, 0.7),
  'cactus': (0.1, 0.5),
  'ensemble': (0.3, 0.6),
  'contrastive': (0.1, 0.4),
}
_PAIRS = [
  (methods.METHODS[name], lenience)
  for name, both in _LENIENCES.items()
  for lenience in both
]
_TEXTS = [
  text
  for length in range(1, _MOST + 1)
  for text in itertools.product(range(3), repeat=length)
  if _END not in text[:-1] and (length == _MOST or text[-1] == _END)
]


@functools.cache
def _pair():
  return tuple(
    checkpoints.Checkpoint(
      _MODEL, _MODEL.init_params(jax.random.key(i), 1.0), None
    )
    for i in range(2)
  )


@functools.cache
def _table():
  verifier, drafter = _pair()
  how = processing.Processing(temperature=1.0)
  d = exact.table_distributions(verifier.params, drafter.params, how)
  return exact.Table.of(_PAIRS, d)


@functools.cache
def _said():
  """What all methods at both leniences say of every text, read once."""
  method = exact.one_of(_PAIRS)
  decoder = sampler.Sampler(*_pair(), method=method, lenience=0)
  others = range(1, len(_PAIRS))
  return dict(
    zip(
      _TEXTS,
      scoring.across(decoder, [(_PROMPT, x) for x in _TEXTS], others),
      strict=True,
    )
  )


@functools.cache
def _seen_from(text, here):
  """What is said of a text, the first of the leniences being another.

  What is beyond is made anew from the table.
  """
  said, table, beyond, drafted = _said()[text], _table(), [], []
  for t in range(len(text)):
    before = np.array([*_PROMPT, *text[:t]])
    at = _MODEL.context(before, np.arange(len(before)))
    kept = table.q[at] * table.acceptance[:, at]
    # Not 1 less what is kept: exactly 0 where all is.
    rejected = (table.q[at] - kept).sum(-1, keepdims=True)
    instead = rejected * table.residual[:, at]
    beyond.append(_beyond(table.law[:, at], here))
    drafted.append(_beyond(np.concatenate([kept, instead], -1), here))
  order = [here, *range(len(_PAIRS))]
  return scoring.Across(
    *(x[:, order] for x in said[:4]),
    np.array(beyond)[:, order],
    np.array(drafted)[:, order],
  )


def _beyond(outcomes, here):
  """[methods, ratios]"""
  first = outcomes[here]
  least = [first * r for r in scoring.RATIOS[:-1]]
  least.append(np.where(first > 0, np.inf, 0))
  return [[other[other > x].sum() for x in least] for other in outcomes]


def _trajectories():
  """Every way in which a text can come about, with its chance for all methods.

  Blocks and their chances are those of `proof.enumeration`, which knows nothing
  of weights.

  Yields:
    Tokens, where each came from, and the chance, [methods].
  """
  scheme = verification.Scheme()
  waiting = collections.deque([((), (), np.ones(len(_PAIRS)))])
  while waiting:
    text, sources, chance = waiting.popleft()
    for block, share in exact.blocks(
      _table(), scheme, _MODEL, [*_PROMPT, *text], _GAMMA
    ):
      last = BONUS if len(block) == _GAMMA + 1 else RESIDUAL
      longer = (*text, *block)[:_MOST]
      own = (*sources, *[DRAFT] * (len(block) - 1), last)[:_MOST]
      if _END in longer:
        longer = longer[: longer.index(_END) + 1]
        own = own[: len(longer)]
      if len(longer) == _MOST or longer[-1] == _END:
        yield longer, own, chance * share
      else:
        waiting.append((longer, own, chance * share))


@functools.cache
def _ways():
  """`_trajectories`, each once."""
  chances = collections.defaultdict(lambda: np.zeros(len(_PAIRS)))
  for text, sources, chance in _trajectories():
    chances[text, sources] += chance
  return dict(chances)


def _worth(text):
  """Some quality of a text."""
  return 0.1 + (sum(text) * 7 + len(text)) % 5 / 5


def _counts(text, sources, here, limit):
  """What a text counts at all leniences; without sources, per token."""
  said, how = _seen_from(text, here), (scoring.RATIOS, limit)
  if sources is None:
    counted = reweighting.per_token(said, *how, gamma=_GAMMA)
  else:
    counted = reweighting.per_block(said, sources, *how)
  # The first of all is its own.
  return np.array(counted)[:, 1:]


def _expected(weighted, here, limit=math.inf):
  """Expectations under one lenience of what texts count at all of them.

  Returns:
    [5, methods], the expectations of `Counted`, and E[w f], [methods].
  """
  chances = collections.defaultdict(float)
  for (text, sources), chance in _ways().items():
    chances[text, None if weighted == 'token' else sources] += chance[here]
  total, quality = 0.0, 0.0
  for (text, sources), chance in chances.items():
    counted = _counts(text, sources, here, limit)
    total = total + chance * counted
    quality = quality + chance * counted[0] * _worth(text)
  return total, quality


@functools.cache
def _true():
  """Quality, examined and rejected drafts of all methods, by their blocks."""
  total = 0.0
  for (text, sources), chance in _ways().items():
    rejected = sources.count(RESIDUAL)
    examined = rejected + sources.count(DRAFT)
    told = np.array([_worth(text), examined, rejected])
    total = total + told[:, None] * chance
  return total


@pytest.mark.parametrize('weighted', reweighting.WEIGHTED)
def test_weights_are_1_in_the_mean_and_give_what_is_there(weighted):
  whole = 0
  for here in range(0, len(_PAIRS), 3):
    (weights, hidden, missing, examined, rejected), quality = _expected(
      weighted, here
    )
    np.testing.assert_allclose(weights + hidden, 1, atol=2e-5)
    # Per block, what is never rejected here, or drafted, may be elsewhere.
    known = missing < 1e-6
    whole += known.sum()
    truncates = _PAIRS[here][0].name == 'contrastive'
    assert known.all() or weighted == 'block' or truncates
    assert known[here]
    np.testing.assert_allclose(weights[known], 1, atol=2e-5)
    found = np.stack([quality, examined, rejected])
    np.testing.assert_allclose(found[:, known], _true()[:, known], atol=1e-4)
  assert whole > 20


@pytest.mark.parametrize('weighted', reweighting.WEIGHTED)
@pytest.mark.parametrize('limit', [1.0, 1.7, 4.0])
def test_what_passes_a_limit_is_known_without_it(limit, weighted):
  for here in (1, 8):
    (weights, hidden, missing, examined, rejected), quality = _expected(
      weighted, here, limit
    )
    np.testing.assert_allclose(weights + hidden, 1, atol=2e-5)
    assert (missing <= hidden + 1e-9).all()
    assert hidden.max() > 0.05
    # The bounds that `estimates` gives; the best is 1.
    true = _true() + 1e-4
    assert (quality <= true[0]).all()
    assert (quality + hidden >= true[0] - 2e-4).all()
    assert (examined <= true[1]).all()
    assert (rejected <= true[2]).all()


@pytest.mark.parametrize('weighted', reweighting.WEIGHTED)
def test_at_its_own_lenience_a_text_counts_1(weighted):
  (weights, hidden, missing, *blocks), quality = _expected(weighted, 9, 2.0)
  told = [
    weights[9],
    hidden[9],
    missing[9],
    quality[9],
    *(x[9] for x in blocks),
  ]
  np.testing.assert_allclose(told, [1, 0, 0, *_true()[:, 9]], atol=1e-5)


def test_what_the_library_reads_is_what_the_table_has():
  # All but the first are seen from the first.
  for text in _TEXTS[::5]:
    said = _said()[text]
    own = _seen_from(text, 0)
    for mine, theirs in zip(said[4:], own[4:], strict=True):
      np.testing.assert_allclose(mine, theirs[:, 1:], atol=2e-6)


def test_what_a_truncated_law_cannot_write_is_missing():
  options = dict(method='min_p', lenience=0.5)
  decoder = sampler.Sampler(*_pair(), **options)
  method = methods.METHODS['min_p']
  how = processing.Processing(temperature=1.0)
  verifier, drafter = _pair()
  d = exact.table_distributions(verifier.params, drafter.params, how)
  table = exact.Table.of([(method, 0.5), (method, 0.0)], d)
  law = exact.declared_law(table, _MODEL, _PROMPT, 3)
  texts = list(itertools.product(range(3), repeat=3))
  said = scoring.across(decoder, [(_PROMPT, x) for x in texts], [0.0])
  total = np.zeros(3)
  for text, one in zip(texts, said, strict=True):
    if law[(0, *text)] > 0:
      c = reweighting.per_token(one, scoring.RATIOS)
      told = c.weights[1], c.hidden[1], c.missing[1]
      total += law[(0, *text)] * np.array(told)
  gone = law[1][law[0] == 0].sum()
  assert gone > 0.1
  np.testing.assert_allclose(total, [1 - gone, gone, gone], atol=1e-5)
  assert 'no support' in estimates.refusal(1000, total[1], total[2])


def test_what_little_says_is_refused():
  assert estimates.refusal(30, 0.05, 0) == ''
  assert estimates.refusal(29.9, 0, 0) == 'effective size 29.9, under 30'
  assert 'out of sight' in estimates.refusal(500, 0.051, 0)
  assert 'no support' in estimates.refusal(500, 0, 1e-4)
  # Nothing counts: neither number is one.
  assert estimates.refusal(0, math.nan, math.nan)


def _decoded(rng, place, count):
  """Places of texts among `_ways`, as often as a sweep would have them."""
  chances = np.array([chance[place] for chance in _ways().values()])
  return rng.choice(len(chances), count, p=chances / chances.sum())


def _run(here, there, rng, count):
  """Records at two leniences, and what the first count at the second."""
  ways, limit = list(_ways()), estimates.limit(count)
  lines, read, known = [], [], {}
  for lenience, place in ((0.0, here), (1.0, there)):
    for i, way in enumerate(_decoded(rng, place, count)):
      text, sources = ways[way]
      rejected, kept = sources.count(RESIDUAL), sources.count(DRAFT)
      fields = dict.fromkeys(
        'emitted drafted deferred residual bonus verifier_calls verifier_tokens'
        ' drafter_calls'.split(),
        1,
      )
      record = records.Record(
        task='made up',
        method='m',
        lenience=lenience,
        gamma=_GAMMA,
        verification='token',
        gate='raw',
        bonus_from='target',
        drafts=1,
        temperature=1.0,
        id=str(i),
        failure=None,
        text='',
        quality=float(_worth(text) > 0.6),
        scores={},
        ended=True,
        examined=rejected + kept,
        accepted=kept,
        wall_s=1.0,
        **fields,
      )
      lines.append(record)
      if lenience == 0:
        if (text, sources) not in known:
          known[text, sources] = {
            weighted: _counts(text, own, here, limit)[:, [here, there]]
            for weighted, own in (('token', None), ('block', sources))
          }
        read += _rereadings(record, known[text, sources], limit)
  run = runs.Run(None, {}, {}, None, None, {'p': lines})
  return run, read


def _rereadings(record, known, limit):
  for weighted, counted in known.items():
    yield records.Rereading(
      point='p',
      lenience=0.0,
      id=record.id,
      weighted=weighted,
      limit=limit,
      leniences=[0.0, 1.0],
      **dict(zip(reweighting.Counted._fields, counted.tolist(), strict=True)),
    )


def test_estimates_come_to_what_is_there():
  rng = np.random.default_rng(0)
  here, there = 10, 11
  run, read = _run(here, there, rng, 20_000)
  found = estimates.frame(run, read, Choice(resamples=50))
  assert list(found.weighted) == ['token', 'block']
  right = sum(
    chance[there] * (_worth(text) > 0.6)
    for (text, _), chance in _ways().items()
  )
  _, examined, rejected = _true()[:, there]
  for row in found.to_dict('records'):
    assert row['refused'] == ''
    assert row['quality'] == pytest.approx(right, abs=0.02)
    assert row['rejection_rate'] == pytest.approx(rejected / examined, abs=0.02)
    assert row['quality_low'] < right < row['quality_high']
  token, block = found.effective
  # What became of drafts is noise, once tokens are known.
  assert token > block


@pytest.mark.slow
@pytest.mark.parametrize('here', [8, 10, 16])
def test_intervals_hold_at_the_stated_rate(here):
  rng = np.random.default_rng(1)
  there, choice, repeats = here + 1, Choice(resamples=400), 200
  right = sum(
    chance[there] * (_worth(text) > 0.6)
    for (text, _), chance in _ways().items()
  )
  _, examined, rejected = _true()[:, there]
  true = {'quality': right, 'rejection_rate': rejected / examined}
  held = collections.Counter()
  for _ in range(repeats):
    found = estimates.frame(*_run(here, there, rng, 150), choice)
    for row in found[found.refused == ''].to_dict('records'):
      held[row['weighted']] += 1
      for name, value in true.items():
        low, high = row[f'{name}_low'], row[f'{name}_high']
        held[row['weighted'], name] += low <= value <= high
    for name in true:
      for kind, holds in zip(
        found.weighted, estimates.holds(found, name), strict=True
      ):
        held[kind, name, 'difference'] += holds == 1
  for kind in reweighting.WEIGHTED:
    if held[kind] < repeats / 2:
      continue
    for name in true:
      # 95 %, less three standard deviations of 200 tries, and less what a
      # bootstrap of so few answers lacks.
      assert held[kind, name] >= 0.89 * held[kind], (kind, name)
      assert held[kind, name, 'difference'] >= 0.89 * held[kind]
  assert held['token'] > repeats / 2


def test_a_coverage_counts_only_what_is_compared():
  run, read = _run(10, 11, np.random.default_rng(2), 100)
  choice = Choice(resamples=200)
  found = estimates.frame(run, read, choice)
  counted = estimates.coverage(found)
  assert counted.leniences.tolist() == [1, 1]
  # Too few answers for an effective size.
  few = [line for line in read if int(line.id) < 20]
  refused = estimates.frame(run, few, choice)
  assert refused.refused.str.contains('effective size').all()
  assert refused.quality.isna().all()
  assert refused.decoded_quality.notna().all()
  assert estimates.coverage(refused).quality_compared.tolist() == [0, 0]
  # Nothing was decoded at the other lenience.
  alone = runs.Run(None, {}, {}, None, None, {'p': run.lines['p'][:100]})
  found = estimates.frame(alone, read, choice)
  assert found.quality.notna().any()
  assert found.quality_difference.isna().all()
  assert estimates.coverage(found).empty
  assert 'Nothing' in estimates.sentence(found)
  # Of another point, nothing.
  gone = runs.Run(None, {}, {}, None, None, {})
  assert estimates.frame(gone, read, choice).empty


_CURVES = [
  plan.Curve.of({}, 'verifier_only', ()),
  plan.Curve.of({}, 'drafter_only', ()),
  plan.Curve.of({}, 'token_v3', (0.5, 0.6, 0.7), gamma=2),
  plan.Curve.of({}, 'speed', (0.0, 0.3), gamma=2, verification='block'),
  plan.Curve.of({}, 'chow', (0.1, 0.2), gamma=2, bonus='verifier'),
]


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  import ml_collections

  verifier, drafter = small.pair()
  config = ml_collections.ConfigDict(
    dict(
      verifier=verifier,
      drafter=drafter,
      tasks=('numerals',),
      num_examples=40,
      temperature=1.0,
      batch_size=16,
      seed=0,
    )
  )
  path = tmp_path_factory.mktemp('runs') / 'small'
  sweep.run(config, _CURVES, path, quiet=True)
  return path


def _command(path, *more):
  return launching.run('experiments.reweight', f'--workdir={path}', *more)


@pytest.mark.slow
def test_the_command_reads_once_and_the_page_shows_it(workdir):
  done = _command(workdir, '--between=1')
  assert done.returncode == 0, done.stderr
  assert 'chow bonus verifier gamma 2: bonus:' in done.stdout
  found = pd.read_csv(workdir / 'estimates.csv', keep_default_na=False)
  kinds = {(v, w) for v, w in zip(found.variant, found.weighted, strict=True)}
  assert kinds == {
    ('token_v3', 'token'),
    ('token_v3', 'block'),
    ('speed block', 'token'),
  }
  assert {*found.lenience[found.variant == 'token_v3']} == {
    *(0.5, 0.55, 0.65, 0.7)
  }
  files = sorted((workdir / 'rereadings').iterdir())
  assert len(files) == 2
  before = [path.stat().st_mtime_ns for path in files]
  # What is there is not read again, and what is damaged is.
  files[1].write_bytes(files[1].read_bytes()[:-20])
  again = _command(workdir, '--between=1')
  assert again.stdout == done.stdout
  assert files[0].stat().st_mtime_ns == before[0]
  assert len(records.read(files[1], records.Rereading)) in (40, 80)
  done = launching.run(
    'experiments.report', f'--workdir={workdir}', '--resamples=100'
  )
  assert done.returncode == 0, done.stderr
  page = (workdir / 'report/index.html').read_text()
  assert 'What one decoding tells of the others' in page
  assert (workdir / 'report/tables/estimates.csv').is_file()
  assert (workdir / 'report/tables/estimates_refused.csv').is_file()


@pytest.mark.slow
def test_a_reading_is_what_was_decoded(workdir):
  run = runs.read(workdir)
  config = rereading.config_of(run)
  curves = rereading.curves_of(run, config, ['token_v3'])
  (job,) = rereading.jobs(run, curves, 0.6)
  assert (job.lenience, job.leniences, job.limit) == (0.6, (0.5, 0.7), 4.0)
  lines = rereading.Reader(run, config).read(run, job, lambda: None)
  of = {r.id: r for r in run.lines[job.point] if r.lenience == 0.6}
  examined = rejected = 0.0
  for line in lines:
    assert line.weights[0] == 1
    assert line.hidden[0] == 0
    if line.weighted == 'block':
      assert line.examined[0] == of[line.id].examined
    else:
      examined += line.examined[0]
      rejected += line.rejected[0]
  assert examined == pytest.approx(
    sum(r.examined for r in of.values()), rel=0.1
  )
  assert rejected == pytest.approx(
    sum(r.examined - r.accepted for r in of.values()), rel=0.2
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    (['--method=opt'], 'method: opt was not decoded at any lenience in'),
    (
      ['--method=token_v3', '--from=0.3'],
      'from: token_v3 gamma 2 was not decoded at 0.3; there are 0.5, 0.6, 0.7.',
    ),
    (['--leniences=0.1,x'], "leniences: 'x' is no number"),
    (['--between=-1'], 'between'),
  ],
)
def test_mistakes_are_one_sentence(workdir, flags, said):
  done = _command(workdir, *flags)
  assert done.returncode == 2
  assert said in done.stderr
  assert 'Traceback' not in done.stderr


@pytest.mark.slow
def test_a_workdir_that_cannot_be_read_so_is_refused(workdir, tmp_path):
  assert 'there is no folder' in _command(tmp_path / 'none').stderr
  (tmp_path / 'empty').mkdir()
  assert 'no records in' in _command(tmp_path / 'empty').stderr
  assert (
    '--workdir: name the folder' in launching.run('experiments.reweight').stderr
  )
  copy = tmp_path / 'copy'

  def changed(name, old, new):
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(workdir, copy)
    shutil.rmtree(copy / 'rereadings', ignore_errors=True)
    text = (copy / name).read_text()
    assert old in text
    (copy / name).write_text(text.replace(old, new))
    done = _command(copy)
    assert done.returncode == 2, done.stdout
    return done.stderr

  said = changed('config.json', '"temperature": 1.0', '"temperature": 0.0')
  assert 'temperature: at 0 an answer is the only one' in said
  said = changed('config.json', '"curves"', '"others"')
  assert 'does not say what was decoded' in said
  said = changed('provenance.json', '"verifier": "', '"verifier": "0')
  assert 'was decoded with another verifier' in said


def test_places_of_a_curve():
  curve = plan.Curve.of({}, 'opt', (-math.inf, 0.0, 0.1, 0.5, math.inf))
  places = rereading._places
  assert places(curve, None, (), 0) == (0.1, (-math.inf, 0.0, 0.5, math.inf))
  at, others = places(curve, 0.0, (0.2,), 1)
  assert at == 0
  np.testing.assert_allclose(
    others, [-math.inf, 0.05, 0.1, 0.2, 0.3, 0.5, math.inf]
  )
  with pytest.raises(ValueError, match='from: opt gamma 4 was not decoded at'):
    places(curve, 0.3, (), 0)


def test_a_curve_of_one_lenience_wants_others():
  run = runs.Run(None, {}, {}, None, None, {})
  with pytest.raises(ValueError, match='leniences: no curve has a second'):
    rereading.jobs(run, [plan.Curve.of({}, 'chow', (0.1,))])
