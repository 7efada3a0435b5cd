"""A certificate of anybody's verification, exact where it can be."""

import functools
import json

import launching
import numpy as np
import pytest

from cascades.proof import branching, engines


def _norm(x):
  return x / x.sum()


def _token(q, p, drafts, rng):
  """Token by token, as published."""
  for i, x in enumerate(drafts):
    if rng.random() < min(1, p[i, x] / q[i, x]):
      continue
    left = np.maximum(0, p[i] - q[i])
    return [*drafts[:i], rng.choice(len(left), p=_norm(left))]
  return [*drafts, rng.choice(p.shape[1], p=p[-1])]


def _block(q, p, drafts, rng, capped=True, fresh=True):
  """As a block; its last weight is that of the whole draft where uncapped."""
  weights, ratios = [1.0], [p[i, x] / q[i, x] for i, x in enumerate(drafts)]
  for ratio in ratios:
    weights.append(min(1, weights[-1] * ratio))
  if not capped:
    weights[-1] = min(1, np.prod(ratios))
  kept, u = 0, rng.random()
  for i in range(1, len(drafts) + 1):
    w, h = weights[i], weights[i]
    if i < len(drafts):
      mass = np.maximum(0, w * p[i] - q[i]).sum()
      h = mass / (mass + 1 - w) if w < 1 else 1.0
    if (rng.random() if fresh else u) < h:
      kept = i
  if kept == len(drafts):
    return [*drafts, rng.choice(p.shape[1], p=p[kept])]
  left = np.maximum(0, weights[kept] * p[kept] - q[kept])
  return [*drafts[:kept], rng.choice(len(left), p=_norm(left))]


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
  assert f'token {worst.token} has {worst.emitted:.4f}' in str(found)
  # With one draft neither has a fault to make.
  assert engines.certify(verify, gamma=1).passed


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


@pytest.mark.slow
def test_a_number_that_is_squared_is_drawn():
  def squared(q, p, drafts, rng):
    return [int(rng.random() ** 2 < p[0, 1])]

  found = engines.certify(squared, models=1)
  assert not found.exact
  assert not found.passed


@pytest.mark.parametrize(
  ('said', 'message'),
  [
    (lambda q, p, d, rng: [9], r'it made \[9\]; let it return drafts from'),
    (lambda q, p, d, rng: [], 'let it return drafts'),
    (lambda q, p, d, rng: [*d, 0, 0], 'let it return drafts'),
    (lambda q, p, d, rng: [1 - d[0] % 2, 0], 'let it return drafts'),
    (lambda q, p, d, rng: None, 'it returned None; let it return a list'),
  ],
)
def test_what_is_no_block_is_refused(said, message):
  with pytest.raises(ValueError, match=f'^verify: .*{message}'):
    engines.certify(said)


@pytest.mark.parametrize(
  ('given', 'message'),
  [
    (dict(rule='cactus'), 'rule: cactus has no single target'),
    (dict(rule='contrastive'), 'lenience: contrastive is nowhere strict'),
    (dict(gamma=0), 'gamma: 0'),
    (dict(size=1), 'size: 1'),
  ],
)
def test_a_rule_that_declares_nothing_is_refused(given, message):
  with pytest.raises(ValueError, match=message):
    engines.certify(_token, **given)


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
  cases += [
    (lambda r: int(np.searchsorted(ends, r.random())), thirds),
    (lambda r: int((r.random() > ends).sum()), thirds),
    # The same number, looked at twice, and two numbers.
    (
      lambda r: tuple(r.random() < x for x in (0.5, 0.5)),
      dict.fromkeys(
        ((a, b) for a in (True, False) for b in (True, False)), 0.25
      ),
    ),
    (
      lambda r: (lambda u: (u < 0.25, u < 0.5))(r.random()),
      {(True, True): 0.25, (False, True): 0.25, (False, False): 0.5},
    ),
  ]
  for run, want in cases:
    assert outcomes(run) == pytest.approx(want)
  for run, said in (
    (lambda r: r.random() < r.random(), 'two random numbers'),
    (lambda r: float(r.random()), 'digits'),
    (lambda r: r.normal(), 'random numbers of normal'),
    (lambda r: tuple(r.choice(9, 9)), 'more than 1000 calls'),
  ):
    with pytest.raises(branching.NotEnumerableError, match=said):
      outcomes(run, 1000)


@pytest.mark.slow
def test_the_command_says_it_with_its_exit_code(tmp_path):
  lines = [
    'import numpy as np',
    'def verify(q, p, drafts, rng):',
    '  for i, x in enumerate(drafts):',
    '    if rng.random() * q[i, x] >= p[i, x]:',
    '      left = np.maximum(0, p[i] - q[i])',
    '      return [*drafts[:i], rng.choice(len(left), p=left / left.sum())]',
    '  return [*drafts, rng.choice(p.shape[1], p=p[-1])]',
  ]
  file = tmp_path / 'engine.py'
  file.write_text('\n'.join(lines) + '\n')
  command = (
    *('experiments.audit', f'--function={file}:verify', '--method=speed'),
    f'--workdir={tmp_path}',
  )
  run = launching.run(*command)
  assert run.returncode == 0
  assert 'everything gone through' in run.stdout
  (kept,) = json.loads((tmp_path / 'verify.json').read_text())
  assert kept['passed']
  run = launching.run(*command, '--lenience=0.5')
  assert run.returncode == 1
  assert 'FAILED' in run.stdout
  run = launching.run(*command[:1], f'--function={file}:other', *command[2:])
  assert run.returncode == 2
  assert "has no function 'other'" in run.stderr
