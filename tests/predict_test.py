"""The command that predicts a pair, its unit costs and its speed-ups."""

import json
import math

import answers
import launching
import numpy as np
import pytest
import small

from experiments.records.unit_costs import Costs
from experiments.sweeps import costs

_VERIFY_S = {1: 1.1, 3: 1.5}
_COSTS = Costs(verifier_token_s=1, drafter_token_s=0.1, verify_s=_VERIFY_S)


def test_a_speedup_is_the_verifiers_time_over_a_calls():
  assert _COSTS.speedup(1, 0, 0) == 1
  # Between measured gammas a block costs its share.
  tokens, gammas = np.array([1.5, 2, 3]), np.array([1, 2, 3])
  expected = tokens / (0.1 * gammas + [1.1, 1.3, 1.5])
  np.testing.assert_allclose(_COSTS.speedup(tokens, gammas, gammas), expected)
  assert math.isnan(_COSTS.speedup(4, 4, 4))


def test_acceptance_above_break_even_pays():
  # 1 + a = .1 + 1.1, and 1 + a + a^2 + a^3 = .3 + 1.5.
  assert _COSTS.break_even([1]) == pytest.approx(0.2, abs=0.0015)
  root = _COSTS.break_even([3])
  assert 1 + root + root**2 + root**3 == pytest.approx(1.8, abs=0.003)
  assert _COSTS.break_even([1, 3]) == _COSTS.break_even([1])
  slow = _COSTS.model_copy(update={'drafter_token_s': 3.0})
  assert slow.break_even([1, 3]) == math.inf


def test_unit_costs_are_those_of_a_batch():
  verifier, drafter = small.tables()
  bound = small.sampler(verifier, drafter).bound_drafter
  (run, calls), drafter_calls = costs.strict_loop(verifier, 6, bound, 2, rows=3)
  rows, blocks = run()
  assert (rows.length.shape, int(blocks), calls) == ((3,), 2, 2)
  assert drafter_calls == 2
  # Rows differ in their draws.
  assert len({*map(bytes, np.asarray(rows.tokens))}) > 1
  run, _ = costs.proposal_loop(verifier, bound, 2, 1, 9, 3)
  assert run().shape == (3,)


def test_a_pair_is_predicted(tmp_path):
  verifier, drafter = small.pair()
  file = tmp_path / 'costs.json'
  file.write_text(answers.measured(_COSTS).model_dump_json())
  paths = {x: tmp_path / f'new/prediction.{x}' for x in ('json', 'svg')}
  flags = f'--costs={file} --json={paths["json"]} --figure={paths["svg"]}'
  flags += f' --verifier={verifier} --drafter={drafter} --answers=5'
  flags += ' --task=numerals --method=token_v3 --lenience=0 --lenience=0.5'
  flags += ' --gamma=1 --gamma=3 --max_new_tokens=12 --seed=3 --why'
  done = launching.run('experiments.predict', *flags.split())
  assert done.returncode == 0, done.stderr
  facts = json.loads(paths['json'].read_text())
  assert (facts['num_answers'], facts['data']['task']) == (5, 'numerals')
  assert facts['costs'] == {'1': json.loads(_COSTS.model_dump_json())}
  points = facts['points']
  keys = [(x['method'], x['lenience'], x['gamma']) for x in points]
  rules = ('speed', 0.0), ('token_v3', 0.0), ('token_v3', 0.5)
  assert keys == [(*rule, gamma) for rule in rules for gamma in (1, 3)]
  for x in points:
    call = 0.1 * x['drafter_calls'] + _COSTS.verify(x['gamma'])
    speedups = x['speedup'], x['speedup_low'], x['speedup_high']
    tokens = np.array([x['tokens_per_call'], x['low'], x['high']])
    np.testing.assert_allclose(speedups, tokens / call)
  best = max(points[:2], key=lambda x: x['speedup'])
  said, _, head, *rows = done.stdout.splitlines()
  assert f' strict decoding would be {best["speedup"]:.2f} [' in said
  assert f'(gamma {best["gamma"]}, ' in said
  assert ' break-even 0.20); the drafter ' in said
  assert head.split()[::9] == ['method', 'gamma']
  assert [tuple(x.split()[:2]) for x in rows[:3]] == [
    (method, f'{lenience:.3f}') for method, lenience in rules
  ]
  assert rows[0].split()[-1] == f'{best["speedup"]:.3f}'
  read = f'Read: 5 answers of {facts["num_positions"]} tokens.'
  assert rows[3:5] == ['', read]
  sentence, _, head, _ = rows[-14:-10]
  assert sentence.startswith('With temperature 2 the drafter is accepted at 0.')
  assert head.split() == ['count', 'acceptance']
  for step in ('decoding verifier_only: 5 of 5', 'decoding token_v3: 10 of 10'):
    assert step in done.stderr
  assert ', compiling ' in done.stderr.splitlines()[-1]
  assert 'TokenV3' in paths['svg'].read_text()
