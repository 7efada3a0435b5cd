"""Certificates of anybody's verification, and of what engines wrote down."""

import functools
import gzip
import itertools
import json

import jax
import jax.numpy as jnp
import launching
import numpy as np
import pytest
import small

from cascades import methods
from cascades.contrib.engine_audits import branching, engines, traces
from cascades.models import checkpoints
from cascades.proof import table_models
from cascades.proof.sampled import check_sources


def _left(q, p, weight=1.0):
  left = np.maximum(0, weight * p - q)
  return left / left.sum()


def _chosen(row, rng):
  return rng.choice(len(row), p=row)


def _token(q, p, drafts, rng, draw=_chosen):
  """Token by token, as published."""
  for i, x in enumerate(drafts):
    if rng.random() * q[i, x] >= p[i, x]:
      return [*drafts[:i], draw(_left(q[i], p[i]), rng)]
  return [*drafts, draw(p[-1], rng)]


def _block(q, p, drafts, rng, capped=True, fresh=True):
  """Verifies a block; without a cap the last weight is the draft's."""
  gamma, weights, kept = len(drafts), [1.0], 0
  ratios = (p[:-1] / q)[range(gamma), drafts]
  for ratio in ratios:
    weights.append(min(1, weights[-1] * ratio))
  if not capped:
    weights[-1] = min(1, np.prod(ratios))
  u = None if fresh else rng.random()
  for i, w in enumerate(weights[1:], 1):
    h = w
    if i < gamma:
      mass = np.maximum(0, w * p[i] - q[i]).sum()
      h = mass / (mass + 1 - w) if w < 1 else 1.0
    if (rng.random() if fresh else u) < h:
      kept = i
  if kept == gamma:
    return [*drafts, _chosen(p[-1], rng)]
  return [*drafts[:kept], _chosen(_left(q[kept], p[kept], weights[kept]), rng)]


def _of_the_guide():
  """The function of docs/howto/audit_engine.md."""
  text = (small.ROOT / 'docs/howto/audit_engine.md').read_text()
  names = {}
  exec(text.partition('```python\n')[2].partition('```')[0], names)
  return names['verify']


@pytest.mark.parametrize('verify', [_token, _block, _of_the_guide()])
def test_a_verification_that_keeps_the_law_passes_exactly(verify):
  found = engines.certify(verify)
  assert found.exact
  assert found.passed
  assert found.high < 1e-12
  # Its strict end may be infinite, which JSON has not.
  endless = engines.certify(verify, 'opt')
  assert endless.passed
  json.dumps(endless.to_dict(), allow_nan=False)
  # Another rule is another law.
  other = engines.certify(verify, 'token_v3', 0.3)
  assert not other.passed
  assert other.low > 0.05


def test_randomness_of_a_functions_own_is_refused():
  own = np.random.default_rng(0)
  with pytest.raises(ValueError, match='equal draws of rng'):
    engines.certify(lambda q, p, drafts, _: _token(q, p, drafts, own))

  def mixed(q, p, drafts, rng):
    u = own.uniform(size=len(drafts))
    kept = int((u * q[[0, 1], drafts] < p[[0, 1], drafts]).cumprod().sum())
    row = p[-1] if kept == len(drafts) else _left(q[kept], p[kept])
    return [*drafts[:kept], int(np.searchsorted(row.cumsum(), rng.uniform()))]

  with pytest.raises(ValueError, match='equal draws of rng'):
    engines.certify(mixed)
  with pytest.raises(ValueError, match='verify: must take'):
    engines.certify(lambda q, p, drafts: drafts)


def _rarely_wrong(row, rng):
  rare = rng.random() < 1e-8
  ends = np.cumsum(row)
  return int(np.argmin(row) if rare else np.searchsorted(ends, rng.random()))


def _in_float32(row, rng):
  ends = np.cumsum(row, dtype=np.float32)
  return min(len(row) - 1, int(np.searchsorted(ends, rng.random())))


@pytest.mark.parametrize(
  ('verify', 'least', 'most'),
  [
    (functools.partial(_block, capped=False), 0.03, 0.05),
    (functools.partial(_block, fresh=False), 0.02, 0.1),
    (functools.partial(_token, draw=_rarely_wrong), 1e-9, 3e-8),
    (functools.partial(_token, draw=_in_float32), 1e-12, 1e-7),
  ],
)
def test_faults_of_ports_are_told_with_their_row(verify, least, most):
  found = engines.certify(verify)
  assert found.exact
  assert not found.passed
  assert least < found.low == found.high < most
  worst = found.worst
  assert abs(worst.emitted - worst.declared) > least / 2
  assert f'token {worst.token} has probability' in str(found)
  said = 'float32 rounding: compute probabilities' in str(found)
  assert said == (most <= 1e-7)
  if least > 0.01:
    # With one draft neither has a fault to make.
    assert engines.certify(verify, gamma=1).passed


def _falls_through(row, rng):
  u = rng.random()
  return next((x for x, end in enumerate(np.cumsum(row)) if u < end), None)


# Ways to draw a token that are right but for the last digit of a sum.
@pytest.mark.parametrize(
  'draw',
  [
    _falls_through,
    lambda row, rng: int(
      np.searchsorted(np.cumsum(row), (1 - rng.random()) * row.sum(), 'right')
    ),
    lambda row, rng: rng.choice(len(row), None, True, row),
    lambda row, rng: rng.choice(len(row), p=row * (1 + 1e-9)),
  ],
)
def test_a_branch_that_only_rounding_makes_is_none(draw):
  verify = functools.partial(_token, draw=draw)
  # Of nine tokens sums end below 1 and above it.
  for gamma, size in (2, 3), (1, 9):
    found = engines.certify(verify, gamma=gamma, size=size)
    assert found.exact
    assert found.passed
    assert found.low < 1e-12


def test_what_is_dropped_is_little_in_all():
  # Each of these is rounding, and all together they are not.
  rare = lambda rng: sum(bool(rng.random() < 9e-13) for _ in range(300))  # noqa: E731
  found = branching.outcomes(rare)
  dropped = 1 - sum(found.values())
  assert 0 < dropped <= 1.01 * branching.MAX_DROPPED
  assert found[1] + dropped == pytest.approx(300 * 9e-13, rel=1e-3)


def _opaque(verify, q, p, drafts, rng):
  """The same, with random numbers that cannot be gone through."""
  return verify(q, p, drafts, np.random.default_rng(rng.integers(2**31)))


@pytest.mark.slow
def test_what_cannot_be_gone_through_is_sampled():
  right = engines.certify(functools.partial(_opaque, _token), models=2)
  assert not right.exact
  assert right.passed
  assert right.low == 0 < right.high < 0.05
  assert 'random numbers of integers are drawn' in str(right)
  opaque = functools.partial(_opaque, _token)
  wrong = engines.certify(opaque, 'token_v3', 0.5, models=2)
  exact = engines.certify(_token, 'token_v3', 0.5, models=2)
  assert not wrong.passed
  assert wrong.low <= exact.low <= wrong.high

  # A token that the law rules out counts in full.
  def drawn(q, p, drafts, rng):
    return [int(rng.choice(3, p=p[0]))]

  exact, sampled = (
    engines.certify(verify, 'top_k', 1.0, gamma=1, models=1)
    for verify in (drawn, functools.partial(_opaque, drawn))
  )
  assert exact.exact
  assert not sampled.exact
  assert sampled.low <= exact.low <= sampled.high


_NAN = small.of_target(lambda d, lenience: d.p * np.nan)


@pytest.mark.usefixtures('wrong_types')
@pytest.mark.parametrize(
  ('verify', 'given', 'message'),
  [
    *(
      (verify, {}, f'verify: must return the acc.*{said}')
      for verify, said in (
        (lambda q, p, d, rng: [9], r'got \[9\] for.* sum in float64'),
        (lambda q, p, d, rng: [], ''),
        (lambda q, p, d, rng: [*d, 0, 0], ''),
        (lambda q, p, d, rng: [1 - d[0] % 2, 0], ''),
        (lambda q, p, d, rng: None, 'got None'),
        (lambda q, p, d, rng: ['a'], 'got .*a'),
      )
    ),
    (_token, dict(rule='contrastive'), 'lenience: must be given for contr'),
    (_token, dict(rule='margin', lenience=1), 'method: margin needs raw log'),
    (_token, dict(rule='ensemble', lenience=np.nan), 'lenience: must be a nu'),
    (_token, dict(rule=_NAN, lenience=0.5), 'rule: .* has a law with nan at'),
    (_token, dict(gamma=0), 'gamma: must be 1 or more'),
    (_token, dict(size=1), 'size: must be 2 or more'),
  ],
)
def test_what_is_no_block_or_no_rule_is_refused(verify, given, message):
  with pytest.raises(ValueError, match=f'^{message}'):
    engines.certify(verify, **given)


_ENDS = np.cumsum([0.25, 0.25, 0.5])
_NEARLY_ONE = np.float32([0.25, 0.75]) * 1.000001
_QUARTERS = {0: 0.25, 1: 0.25, 2: 0.5}


@pytest.mark.parametrize(
  ('run', 'want'),
  [
    (lambda r: bool(np.float32(0.25) >= r.random()), {True: 0.25, False: 0.75}),
    (lambda r: bool(2 * r.random() - 1 > 0.5), {True: 0.25, False: 0.75}),
    (lambda r: bool(r.uniform(2, 4) <= 3), {True: 0.5, False: 0.5}),
    (lambda r: int(r.choice(2, p=[0, 1])), {1: 1.0}),
    # NumPy takes float32 probabilities that do not quite sum to 1.
    (lambda r: int(r.choice(2, p=_NEARLY_ONE)), {0: 0.25, 1: 0.75}),
    (lambda r: tuple(r.multinomial(1, [0.5, 0.5])), {(0, 1): 0.5, (1, 0): 0.5}),
    (lambda r: int(np.searchsorted(_ENDS, r.random())), _QUARTERS),
    (lambda r: int((r.random() > _ENDS).sum()), _QUARTERS),
    # Two numbers, and the same number, looked at twice.
    (
      lambda r: tuple(r.random() < x for x in (0.5, 0.5)),
      dict.fromkeys(itertools.product((True, False), repeat=2), 0.25),
    ),
    (
      lambda r: (lambda u: (u < 0.25) + (u < 0.5))(r.random()),
      {2: 0.25, 1: 0.25, 0: 0.5},
    ),
    (lambda r: r.random() < r.random(), 'two random numbers'),
    (lambda r: float(r.random()), 'value of a'),
    (lambda r: r.normal(), 'random numbers of normal'),
    (lambda r: tuple(r.choice(3, 2, False)), 'without replacement'),
    (lambda r: tuple(r.choice(9, 9)), 'more than 1000 calls'),
  ],
)
def test_all_that_is_drawn_is_gone_through(run, want):
  if isinstance(want, dict):
    assert branching.outcomes(run) == pytest.approx(want)
  else:
    with pytest.raises(branching.NotEnumerableError, match=want):
      branching.outcomes(run, 1000)


_V, _GAMMA = 6, 2
_MODEL = table_models.TableModel(_V, contexts=97)
_TABLES = np.random.default_rng(7).dirichlet(np.full(_V, 0.6), (2, 97))


def _written(
  path, verify, blocks=6000, most=None, draft=_chosen, tables=_TABLES, seed=0
):
  """A trace of a verification: one text of two table models, after [1]."""
  rng, lines, size, at = np.random.default_rng(seed), [], 1, 2

  def after(context, i, token):
    """The context of `_MODEL` after one more token, the i-th."""
    return (context + (1 + token) * pow(_V, i, _MODEL.contexts)) % 97

  for _ in range(blocks):
    drafts, seen = [], [at]
    for i in range(size, size + _GAMMA):
      drafts.append(int(draft(tables[0, seen[-1]], rng)))
      seen.append(after(seen[-1], i, drafts[-1]))
    q, p = tables[:, seen]
    tokens = [*map(int, verify(q[:_GAMMA], p, np.array(drafts), rng))]
    size += len(tokens)
    at = after(seen[len(tokens) - 1], size - 1, tokens[-1])
    q, p = ([traces.to_json(x, most) for x in rows] for rows in (q, p))
    # Some engines write a row of q more.
    block = dict(q=q if most else q[:_GAMMA], p=p, drafts=drafts, tokens=tokens)
    lines.append(json.dumps(block))
  path.write_text('\n'.join(lines))
  return path


_accept = jax.jit(jax.vmap(methods.METHODS['typical'].acceptance, (0, None)))


def _typical(q, p, drafts, rng):
  """Relaxed acceptance, whose residual may draw a rejected draft again."""
  d = methods.Distributions(*(q, p[:-1]) * 2)
  n = int(np.asarray(_accept(d, 0.7))[range(_GAMMA), drafts].cumprod().sum())
  return [*drafts[:n], _chosen(p[n], rng)]


def test_a_lossless_engine_passes(tmp_path):
  found = traces.certify(_written(tmp_path / 'a', _token, most=3))
  assert found.passed
  assert found.low == 0
  assert found.blocks == 6000
  assert found.drifts[0].tokens == found.tokens
  # It would be seen if it were off by so much.
  assert max(drift.spread for drift in found.drifts) < 0.03
  assert found.sources.passed
  assert sum(n for n, *_ in found.sources.deciles) > 3000


def test_a_relaxed_engine_passes_by_its_own_rule_alone(tmp_path):
  full = traces.certify(_written(tmp_path / 'a', _typical), 'typical', 0.7)
  assert full.passed
  assert full.sources.passed
  path = _written(tmp_path / 'a', _typical, most=3)
  with pytest.raises(ValueError, match='line 1: the law of typical needs the'):
    traces.certify(path, 'typical', 0.7)
  found = traces.certify(path)
  assert not found.passed
  worst = {x.kind: x for x in found.drifts}["the drafter's favourites"]
  assert worst.bias > 0.02
  line, token = worst.worst
  block = json.loads(path.read_text().splitlines()[line - 1])
  assert token in block['tokens']
  assert 'FAILED' in str(found)
  assert f'token {token}, first in line {line}' in str(found)


def test_what_has_no_chance_is_found_once(tmp_path):
  line = dict(q=[], p=[[0, 1, 0]], drafts=[], tokens=[1])
  wrong = line | dict(tokens=[2])
  path = tmp_path / 'a'
  path.write_text('\n'.join(map(json.dumps, [line] * 40 + [wrong])))
  found = traces.certify(path)
  assert not found.passed
  assert found.impossible == ((41, 2),)
  assert found.low == pytest.approx(1 / 41)
  assert 'line 41 emits token 2, of probability 0' in str(found)


_GOOD = dict(q=[[0.5, 0.5]], p=[[1, 0], [0.2, 0.8]], drafts=[0], tokens=[0, 1])


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    ('[1, 2]', 'it is not a JSON object'),
    ('{"q": []}', 'p is missing'),
    ('{"q": 1', 'it is damaged'),
    (dict(p=[[1, 0]]), 'got 1 and 1'),
    (dict(q=[[0.0, 1.0]]), 'draft 0 has probability 0 in q'),
    *(
      (dict(q=[row]), 'q.0 must be a list of probabilities, or an obj')
      for row in (
        *([], 5, [0.5, 0.4], [1.5, -0.5], ['a', 0.5], [float('nan'), 0.5]),
        {'tokens': [2**70], 'probs': [1], 'rest': 0},
        {'tokens': [0], 'probs': [1]},
        {'tokens': [0], 'probs': [1.2], 'rest': -0.2},
        {'tokens': [0, 0], 'probs': [0.5, 0.5], 'rest': 0},
      )
    ),
    (dict(tokens=[]), r'got \[\] for the drafts \[0\]'),
    (dict(tokens=[1, 1]), 'must be the first drafts'),
    (dict(tokens=[1] * 10**5), r'got \[(1, ){6}\.\.\.\] for'),
    (dict(drafts=[True]), 'drafts'),
  ],
)
def test_a_line_that_is_no_block_is_named(tmp_path, change, said):
  wrong = change if isinstance(change, str) else json.dumps(_GOOD | change)
  path = tmp_path / 'a'
  path.write_text(f'{json.dumps(_GOOD)}\n\n{wrong}\n')
  with pytest.raises(ValueError, match=f'^trace: .*, line 3: .*{said}'):
    traces.certify(path)


def test_a_file_that_is_no_trace_is_refused(tmp_path):
  damaged = gzip.compress(b'\n' * 999, mtime=0)[:-9]
  (tmp_path / 'a.jsonl.gz').write_bytes(damaged)
  (tmp_path / 'a').write_text('\n')
  for name, said in (
    ('a.jsonl.gz', '.*ended before the end'),
    ('a', '.* has no block'),
    ('b', 'there is no file'),
  ):
    with pytest.raises(ValueError, match=f'^trace: {said}'):
      traces.certify(tmp_path / name)


def test_transformers_keeps_the_law():
  # Its own speculative sampling, of the bundled pair, at temperature 2.
  path = small.ROOT / 'tests/parity/transformers.jsonl.gz'
  found = traces.certify(path)
  assert found.passed
  assert found.blocks == 800
  # It is no rule that lets more pass: the law of what it drafts is another.
  unlikely = found.drifts[1]
  assert 0.2 < unlikely.declared < 0.5
  assert unlikely.share == pytest.approx(unlikely.declared, abs=0.03)


def _models(drafter=None, tables=_TABLES, **options):
  pair = [checkpoints.Checkpoint(_MODEL, jnp.log(x), None) for x in tables]
  return small.sampler(pair[1], drafter or pair[0], method='speed', **options)


def audit_sources(path, form, draft=_chosen, tables=_TABLES, seed=0):
  """The certificate of blocks, or the check of an answer of all of them."""
  _written(path, _token, 300, draft=draft, tables=tables, seed=seed)
  if form == 'blocks':
    return traces.certify(path)
  ids, sources, w = [], [], []
  for line in path.read_text().splitlines():
    block = json.loads(line)
    # A bonus token has no q.
    rows = zip(block['q'], block['p'], block['tokens'], strict=False)
    ids += block['tokens']
    w += [min(1, q[x] / p[x]) for q, p, x in rows]
    w += [None] * (len(ids) - len(w))
    last = 'bonus' if w[-1] is None else 'residual'
    sources += [1] * (len(block['tokens']) - 1) + [last]
  fields = dict(w=w) if form == 'answer with w' else dict(prompt_ids=[1])
  path.write_text(json.dumps(fields | dict(ids=ids, sources=sources)))
  models = None if form == 'answer with w' else _models(tables=tables)
  return traces.check_answers(path, models)


@pytest.mark.parametrize('form', ['blocks', 'answer', 'answer with w'])
# A public fault: drafts are the argmax of q, accepted by the soft q.
@pytest.mark.parametrize('draft', [_chosen, lambda row, rng: np.argmax(row)])
def test_drafts_that_q_did_not_draw_are_caught(tmp_path, form, draft):
  found = audit_sources(tmp_path / 'a', form, draft)
  assert found.passed == found.to_dict()['passed'] == (draft is _chosen)
  sources = found.sources if form == 'blocks' else found
  assert sources.passed == found.passed
  if not found.passed:
    assert sources.caught_from < 200
    assert 'FAILED at level 0.01' in str(found)
    assert f'caught from n = {sources.caught_from}\n' in str(found)


def test_it_is_caught_from_the_first_of_the_last_that_fail():
  rng = np.random.default_rng(3)
  w = rng.random(300)
  accepted = rng.random(300) < np.where(np.arange(300) < 150, w, 0.6 * w)
  found = check_sources(w, accepted)
  passed = [check_sources(w[:n], accepted[:n]).passed for n in range(1, 301)]
  last = max(n for n, x in enumerate(passed, 1) if x)
  assert found.caught_from == last + 1
  assert 150 < last < 300
  # What cannot be fails at once, and float32 rounds to it.
  for x, source in (0.0, True), (1e-7, True), (1.0, False), (1 - 1e-7, False):
    found = check_sources([0.5, 0.3, x], [True, False, source])
    assert (found.p_value, found.caught_from) == (0, 3)
    assert check_sources([0.5, 0.3, x], [True, False, not source]).passed


def test_last_drafts_and_sources_of_other_verifications_pass(tmp_path):
  # An answer that ends with an accepted draft.
  def ended(q, p, drafts, rng):
    tokens = _token(q, p, drafts, rng)
    return tokens[: tokens.index(0) + 1] if 0 in tokens else tokens

  path = _written(tmp_path / 'a', ended, blocks=1500)
  assert traces.certify(path).sources.passed
  _written(path, _block)
  assert traces.certify(path, verification='block').passed
  # A block accepts more drafts of the same law.
  found = traces.certify(path)
  assert found.low == 0
  assert not found.passed


_ANSWER = dict(prompt_ids=[1], ids=[2, 0], sources=[1, 'bonus'], w=[0.5, None])


@pytest.mark.parametrize(
  ('change', 'models', 'said'),
  [
    (dict(sources=[1]), None, r'ids, sources and w .* got \[2, 1, 2\]'),
    (dict(w=[0.5]), None, r'ids, sources and w .* got \[2, 2, 1\]'),
    *(
      (dict(sources=[x, 3]), None, 'sources.0 must be 1 or 2 or 3 or .draft.')
      for x in ('prompt', 'accepted', 0, 4, True, None, [1])
    ),
    (dict(w=[-0.1, None]), None, 'w.0 must be greater than or equal to 0'),
    (dict(w=[1.1, None]), None, 'w.0 must be less than or equal to 1'),
    (dict(w=[None, 0.5]), None, 'w is missing; give it, or the verifier and'),
    (dict(w=None), None, 'w is missing; give it, or the verifier and'),
    (dict(ids=[-1, 0]), None, 'ids.0 must be greater'),
    (dict(prompt_ids=None), {}, 'prompt is missing; give it, or prompt_ids'),
    (dict(sources=[3, 3]), None, 'trace: .* has no draft; record'),
    (dict(ids=[0, 6]), {}, 'request 0: .* ids from 0 to 5, and'),
    ({}, dict(lenience=0), 'drafter: must be a language model'),
    ({}, dict(lenience=0.5), 'drafter: NgramDrafter is not a language model'),
  ],
)
def test_what_is_no_answer_is_named(tmp_path, change, models, said):
  path = tmp_path / 'a'
  path.write_text(f'\n{json.dumps(_ANSWER | change)}\n')
  assert traces.has_answers(path)
  if models is not None:
    models = _models('ngram' if models else None, **models)
  with pytest.raises(ValueError, match=f'^(trace: .*, line 2: )?{said}'):
    traces.check_answers(path, models)


@pytest.mark.slow
def test_the_command_says_it_with_its_exit_code(tmp_path):
  bad = _written(tmp_path / 'bad', _typical, blocks=3000)
  engine = tmp_path / 'engine.py'
  engine.write_text(
    f'import sys\nsys.path.append({str(small.ROOT / "tests")!r})\n'
    'from engines_test import _token as verify\n'
  )
  pair = zip(('verifier', 'drafter'), small.pair(), strict=True)
  options = dict(pair, method='token_v3', lenience=0.5)
  models = [f'--{name}={value}' for name, value in options.items()]
  answers = tmp_path / 'answers'
  lines = [
    json.dumps(dict(prompt='a', ids=x.tokens, sources=x.sources))
    for x in small.sampler(**options).sample(['a'] * 20)
  ]
  answers.write_text('\n'.join(lines))
  for flags, code, said in (
    ([f'--trace={bad}'], 1, 'FAILED'),
    ([f'--trace={answers}', *models], 0, 'passed at level 0.01'),
    # At another temperature w is another.
    ([f'--trace={answers}', *models, '--temperature=0.3'], 1, 'caught from'),
    ([f'--trace={answers}'], 2, 'line 1: w is missing; give it, or the ver'),
    ([f'--function={engine}:verify'], 0, 'exact: all draws enumerated'),
    ([f'--function={engine}:other'], 2, "has no function 'other'"),
  ):
    flags = ['--method=speed', f'--workdir={tmp_path / "out"}', *flags]
    ran = launching.run('experiments.audit', *flags)
    assert ran.returncode == code, ran.stderr
    assert said in ran.stdout + ran.stderr
    if code < 2:
      (file,) = (tmp_path / 'out').glob('*.json')
      (found,) = json.loads(file.read_text())
      assert found['passed'] == (not code)
      file.unlink()
