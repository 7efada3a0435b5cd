"""A certificate of anybody's verification, exact where it can be."""

import functools
import itertools
import json

import numpy as np
import pytest
import small
import tiers

from cascades.contrib.engine_audits import branching, engines
from cascades.proof.table_models import LEAST_DISTANCE


def _reader(q, p, change):
  """The rows of a call; at one place of one use, another row stands in."""
  use, place, of, row = change or (None, None, 'q', 0)

  def read(name, i):
    pair = [q[i] if i < len(q) else None, p[i]]
    if (name, i) == (use, place):
      pair['qp'.index(of)] = [*q, *p][row]
    return pair

  return read


def _left(q, p, weight=1.0):
  left = np.maximum(0, weight * p - q)
  # A wrong pair of rows may leave nothing.
  left = left if left.any() else np.ones(len(left))
  return left / left.sum()


def _chosen(row, rng):
  return rng.choice(len(row), p=row)


def _token(q, p, drafts, rng, change=None, draw=_chosen):
  """Token by token, as published."""
  read = _reader(q, p, change)
  for i, x in enumerate(drafts):
    of_q, of_p = read('accept', i)
    if rng.random() * of_q[x] >= of_p[x]:
      return [*drafts[:i], draw(_left(*read('left', i)), rng)]
  return [*drafts, draw(read('bonus', len(drafts))[1], rng)]


def _block(q, p, drafts, rng, change=None, capped=True, fresh=True):
  """Verifies a block; without a cap the last weight is the draft's."""
  read, weights, ratios, kept = _reader(q, p, change), [1.0], [], 0
  for i, x in enumerate(drafts):
    of_q, of_p = read('accept', i)
    ratios.append(of_p[x] / of_q[x])
    weights.append(min(1, weights[-1] * ratios[-1]))
  if not capped:
    weights[-1] = min(1, np.prod(ratios))
  u = None if fresh else rng.random()
  for i, w in enumerate(weights[1:], 1):
    h = w
    if i < len(drafts):
      of_q, of_p = read('mass', i)
      mass = np.maximum(0, w * of_p - of_q).sum()
      h = mass / (mass + 1 - w) if w < 1 else 1.0
    if (rng.random() if fresh else u) < h:
      kept = i
  if kept == len(drafts):
    return [*drafts, _chosen(read('bonus', kept)[1], rng)]
  return [
    *drafts[:kept],
    _chosen(_left(*read('left', kept), weights[kept]), rng),
  ]


_uncapped = functools.partial(_block, capped=False)
_reused = functools.partial(_block, fresh=False)


@pytest.mark.parametrize('verify', [_token, _block])
def test_a_verification_that_keeps_the_law_passes_exactly(verify):
  found = engines.certify(verify)
  assert found.exact
  assert found.passed
  assert found.high < 1e-12
  assert 'passed' in str(found)
  # Its strict end may be infinite, which JSON has not.
  endless = engines.certify(verify, 'opt')
  assert endless.passed
  json.dumps(endless.to_dict(), allow_nan=False)
  # Another rule is another law.
  other = engines.certify(verify, 'token_v3', 0.3)
  assert not other.passed
  assert other.low > 0.05


@pytest.mark.parametrize(
  ('verify', 'least', 'most'), [(_uncapped, 0.03, 0.05), (_reused, 0.02, 0.1)]
)
def test_faults_of_ports_are_told_with_their_row(verify, least, most):
  found = engines.certify(verify)
  assert found.exact
  assert not found.passed
  assert least < found.low == found.high < most
  worst = found.worst
  assert abs(worst.emitted - worst.declared) > 0.03
  assert sum(worst.p) == pytest.approx(1)
  assert f'token {worst.token} has probability {worst.emitted:.4f}' in str(
    found
  )
  # With one draft neither has a fault to make.
  assert engines.certify(verify, gamma=1).passed


def _mixtures(gamma, kind):
  """Each row that is used, with each other row of the call in its place.

  None of them is right: all rows differ. What no engine looks at is left out:
  the q of a bonus, and a block's mass before its first draft (w = 1) and after
  its last (h = w).
  """
  uses = [('accept', i) for i in range(gamma)]
  uses += [('left', i) for i in range(gamma)]
  if kind is _block:
    uses += [('mass', i) for i in range(1, gamma)]
  places = [(*use, of) for use in uses for of in 'qp']
  for use, place, of in [*places, ('bonus', gamma, 'p')]:
    own = place if of == 'q' else gamma + place
    for row in range(2 * gamma + 1):
      if row != own:
        yield use, place, of, row


@pytest.mark.parametrize(
  ('gamma', 'size'), tiers.first([(1, 3), (2, 3), (3, 3), (2, 2), (1, 5)], 2)
)
@pytest.mark.parametrize('kind', [_token, _block])
def test_an_engine_that_takes_a_row_for_another_fails(kind, gamma, size):
  models = 8 if size == 2 else 2
  certify = functools.partial(
    engines.certify, gamma=gamma, size=size, models=models
  )
  assert certify(kind).passed
  for change in _mixtures(gamma, kind):
    found = certify(functools.partial(kind, change=change))
    assert found.exact
    assert not found.passed, change
    assert found.low > 1e-3, change


def _searched(row, rng, side='left'):
  return int(np.searchsorted(np.cumsum(row), rng.random(), side=side))


def _falls_through(row, rng):
  u = rng.random()
  for x, end in enumerate(np.cumsum(row)):
    if u < end:
      return x
  return None


def _by_subtraction(row, rng):
  u = rng.random()
  for x, chance in enumerate(row):
    u = u - chance
    if u <= 0:
      return x
  return None


# Ways to draw a token that are right but for the last digit of a sum.
_DRAWS = {
  'left': _searched,
  'right': functools.partial(_searched, side='right'),
  'falls through': _falls_through,
  'subtraction': _by_subtraction,
  'from above': lambda row, rng: int(
    np.searchsorted(np.cumsum(row), 1 - rng.random())
  ),
  'scaled': lambda row, rng: int(
    np.searchsorted(np.cumsum(row), rng.random() * row.sum())
  ),
  'positional': lambda row, rng: rng.choice(len(row), None, True, row),
  'nearly 1': lambda row, rng: rng.choice(len(row), p=row * (1 + 1e-9)),
}


def _shares(q, p, drafts, rng):
  """Verifies one draft with one number, which accepts and draws."""
  u, ratio = rng.random(), min(1, p[0, drafts[0]] / q[0, drafts[0]])
  if u < ratio:
    return [*drafts, _searched(p[-1], rng)]
  ends = np.cumsum(_left(q[0], p[0]))
  return [int(np.searchsorted(ends, (u - ratio) / (1 - ratio)))]


@pytest.mark.parametrize('name', [*_DRAWS, None])
def test_a_branch_that_only_rounding_makes_is_none(name):
  verify, sizes = _shares, [(1, 2), (1, 3), (1, 9)]
  if name:
    # Of nine tokens sums end below 1 and above it.
    verify, sizes = (
      functools.partial(_token, draw=_DRAWS[name]),
      [(2, 3), (1, 9)],
    )
  for gamma, size in sizes:
    found = engines.certify(verify, gamma=gamma, size=size)
    assert found.exact
    assert found.passed
    assert found.low < 1e-12


def test_a_rare_branch_that_is_wrong_fails():
  for chance in 1e-4, 1e-6, 1e-8:

    def draw(row, rng, chance=chance):
      rare = rng.random() < chance
      return int(np.argmin(row)) if rare else _searched(row, rng)

    found = engines.certify(functools.partial(_token, draw=draw), gamma=1)
    assert found.exact
    assert not found.passed
    assert chance / 10 < found.low < chance


def test_what_is_dropped_is_little_in_all():
  # Each of these is rounding, and all together they are not.
  def run(rng):
    return sum(bool(rng.random() < 9e-13) for _ in range(300))

  found = branching.outcomes(run)
  dropped = 1 - sum(found.values())
  assert 0 < dropped <= 1.01 * branching.MAX_DROPPED
  assert found[1] + dropped == pytest.approx(300 * 9e-13, rel=1e-3)
  # Of two that are as rare as each other one is gone through.
  tiny = 0.5 + 1e-13
  assert branching.outcomes(
    lambda r: (lambda u: (u < 0.5, u < tiny, u < 0.5 + 5e-14))(r.random())
  ) == pytest.approx({(True,) * 3: 0.5, (False,) * 3: 0.5})


def test_rounding_of_float32_is_named():
  def ends(row):
    return np.cumsum(row, dtype=np.float32)

  def limited(row, rng):
    return min(len(row) - 1, int(np.searchsorted(ends(row), rng.random())))

  found = engines.certify(functools.partial(_token, draw=limited))
  assert found.exact
  assert not found.passed
  assert found.low < 1e-7
  assert 'float32 rounding: compute probabilities' in str(found)

  def beyond(row, rng):
    return int(np.searchsorted(ends(row) - 1e-7, rng.random()))

  with pytest.raises(
    ValueError, match=r'^verify: .* probability of only .e-08'
  ):
    engines.certify(functools.partial(_token, draw=beyond))
  # NumPy takes float32 probabilities that do not quite sum to 1.
  row = np.float32([0.1, 0.2, 0.7]) * np.float32(1 + 1e-6)
  found = branching.outcomes(lambda r: int(r.choice(3, p=row)))
  assert found == pytest.approx({0: 0.1, 1: 0.2, 2: 0.7})
  with pytest.raises(ValueError, match='do not sum to 1'):
    branching.outcomes(lambda r: int(r.choice(3, p=row * 1.01)))


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
  wrong = engines.certify(
    functools.partial(_opaque, _token), 'token_v3', 0.5, models=2
  )
  exact = engines.certify(_token, 'token_v3', 0.5, models=2)
  assert not wrong.passed
  assert wrong.low <= exact.low <= wrong.high

  # So is a number that is squared.
  def squared(q, p, drafts, rng):
    return [int(rng.random() ** 2 < p[0, 1])]

  found = engines.certify(squared, models=1)
  assert not found.exact
  assert not found.passed

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
        (lambda q, p, d, rng: [9], r'got \[9\] for'),
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


def test_all_that_is_drawn_is_gone_through():
  outcomes = branching.outcomes
  cases = [
    (lambda r: bool(r.random() < 0.3), {True: 0.3, False: 0.7}),
    (lambda r: bool(np.float32(0.25) >= r.random()), {True: 0.25, False: 0.75}),
    (lambda r: bool(2 * r.random() - 1 > 0.5), {True: 0.25, False: 0.75}),
    (lambda r: bool(r.uniform(2, 4) <= 3), {True: 0.5, False: 0.5}),
    (lambda r: int(r.choice(2, p=[0, 1])), {1: 1.0}),
    (lambda r: tuple(r.multinomial(1, [0.5, 0.5])), {(0, 1): 0.5, (1, 0): 0.5}),
  ]
  ends = np.cumsum([0.25, 0.25, 0.5])
  thirds = {0: 0.25, 1: 0.25, 2: 0.5}
  every = dict.fromkeys(itertools.product((True, False), repeat=2), 0.25)
  cases += [
    (lambda r: int(np.searchsorted(ends, r.random())), thirds),
    (lambda r: int((r.random() > ends).sum()), thirds),
    # The same number, looked at twice, and two numbers.
    (lambda r: tuple(r.random() < x for x in (0.5, 0.5)), every),
    (
      lambda r: (lambda u: (u < 0.25, u < 0.5))(r.random()),
      {(True, True): 0.25, (False, True): 0.25, (False, False): 0.5},
    ),
  ]
  for run, want in cases:
    assert outcomes(run) == pytest.approx(want)
  for run, said in (
    (lambda r: r.random() < r.random(), 'two random numbers'),
    (lambda r: float(r.random()), 'value of a'),
    (lambda r: r.normal(), 'random numbers of normal'),
    (lambda r: tuple(r.choice(3, 2, False)), 'without replacement'),
    (lambda r: tuple(r.choice(9, 9)), 'more than 1000 calls'),
  ):
    with pytest.raises(branching.NotEnumerableError, match=said):
      outcomes(run, 1000)


@pytest.mark.parametrize(('gamma', 'size'), [(1, 2), (3, 3), (6, 2), (1, 60)])
def test_all_rows_of_a_call_differ(gamma, size):
  seen = []

  def verify(q, p, drafts, rng):
    seen.append(np.stack([*q, *p]))
    return [0]

  engines.certify(verify, gamma=gamma, size=size, models=2)
  for rows in np.unique(seen, axis=0):
    apart = np.abs(rows[:, None] - rows[None]).sum(-1) / 2
    others = ~np.eye(len(rows), dtype=bool)
    assert apart[others].min() >= LEAST_DISTANCE
