"""The audit: it passes correct methods, and shows why a wrong one fails."""

import dataclasses
import json
import math
import re

import launching
import pytest
import small
import tiers

import cascades
from cascades import methods
from cascades.proof import audit


def _method(**fields):
  """TokenV3 by another name, with other fields."""
  return dataclasses.replace(methods.METHODS['token_v3'], name='mine', **fields)


_SHAPE = 'functions give .V.'


# The method, the check that fails, and what is shown.
@pytest.mark.parametrize(
  ('method', 'name', 'detail'),
  [
    # What is kept of a negative target is nothing, and no negative number.
    (
      small.of_target(lambda d, lenience: d.p - 0.1 * d.q + 0.1 / 9),
      'law is a distribution .float64',
      r'\w+ distributions \d+, lenience 0.3, .*\nlaw [^\n]*-',
    ),
    # The product of two distributions has no mass where they are disjoint.
    (
      small.of_target(lambda d, lenience: d.p * d.q / (d.p * d.q).sum(-1)),
      *('.*', 'disjoint distributions.*nan'),
    ),
    (
      _method(law=lambda d, lenience: d.p.sum(-1)),
      *(_SHAPE, r'law gives shape \(\) for 9 tokens, not \(9,\)\.$'),
    ),
    (
      _method(law=lambda d, lenience: d.logits),
      *(_SHAPE, 'law fails: AttributeError'),
    ),
    # The commonest fault: the relaxed acceptance with the strict residual.
    (
      _method(residual=methods.METHODS['speed'].residual),
      *(r'law = q a \+ .* residual .float64', '.*emitted'),
    ),
    # Zero is not off for TokenV3.
    (_method(strict=0.0), 'at strict lenience 0 the law is p', ''),
  ],
)
def test_a_wrong_method_fails_with_a_counterexample(method, name, detail):
  found = audit.audit(method, [0.3], samples=100)
  assert not found.passed
  assert 'mine: FAILED' in str(found)
  check = next(check for check in found.checks if not check.passed)
  assert re.match(name, check.name)
  assert re.match(detail, check.detail, re.DOTALL)
  assert math.isnan(check.value) or check.value > check.limit


@pytest.mark.parametrize('name', tiers.first(['token_v3', 'cactus']))
def test_a_right_method_passes(name):
  found = cascades.audit(name)
  assert found.passed, str(found)
  assert len(found.checks) == (13 if name == 'token_v3' else 12)
  row = 'sampled law, token verification: largest G +ok +[0-9.]+ .limit [0-9.]+'
  assert re.search(f'  {row}. at lenience [0-9.]+, [0-9.]+\n', str(found))
  assert json.loads(json.dumps(found.to_dict(), allow_nan=False))['passed']


def test_the_launcher_fails_with_a_counterexample(tmp_path):
  rules = tmp_path / 'rules.py'
  rules.write_text(
    'import cascades, jax\n'
    'jax.clear_caches = lambda: print("forgotten")\n'
    'cascades.register(cascades.from_target(\n'
    '  lambda d, lenience: 0.5 * d.p, name="half", equation="p / 2",\n'
    '  reference="a test", strict=None, drafter_only=None))\n'
  )
  flags = '--method=half', f'--import={rules}', f'--workdir={tmp_path}'
  done = launching.run('experiments.audit', *flags)
  assert done.returncode == 1
  assert 'distributions' in done.stdout
  assert 'FAILED: half' in done.stderr
  assert not json.loads((tmp_path / 'half.json').read_text())['passed']
  # All methods' programs are more than a process can hold.
  assert 'forgotten' in done.stdout


@pytest.mark.usefixtures('wrong_types')
@pytest.mark.parametrize(
  ('given', 'said'),
  [
    (dict(method='token_v33'), 'method: .*did you mean'),
    (dict(leniences=[math.nan]), 'lenience: must be one number or more'),
    (dict(leniences=[]), 'lenience: must be one number or more'),
    (dict(samples=10**6, leniences=[0.0] * 11), 'samples: must be 909090 or'),
    *((dict(samples=x), 'samples: ') for x in (0, 1.5, 10**5000)),
    *((dict(seed=x), 'seed: ') for x in (-1, 1.5, 2**32, '1')),
  ],
)
def test_what_no_audit_can_have_is_named(given, said):
  with pytest.raises(ValueError, match=f'^{said}'):
    cascades.audit(**dict(method='speed') | given)
