"""Certificates of what engines wrote down of their blocks."""

import gzip
import json
import pathlib

import conftest
import engines_test
import launching
import numpy as np
import pytest

from cascades import methods
from cascades.contrib.engine_audits import traces

_V, _GAMMA = 6, 2


_CONTEXTS = 97
_TABLES = np.random.default_rng(7).dirichlet(np.full(_V, 0.6), (2, _CONTEXTS))


def _context(text):
  """Returns the context of a text: its last three tokens."""
  at = 0
  for x in text[-3:]:
    at = (at * 11 + x + 1) % _CONTEXTS
  return at


def _written(path, verify, blocks=6000, more=False, most=None, seed=0):
  """A trace of a verification: one text, whose rows hang on what it says."""
  rng, text = np.random.default_rng(seed), []
  with path.open('w') as file:
    for _ in range(blocks):
      drafts = []
      for _ in range(_GAMMA):
        row = _TABLES[0, _context([*text, *drafts])]
        drafts.append(int(rng.choice(_V, p=row)))
      seen = [_context([*text, *drafts[:i]]) for i in range(_GAMMA + 1)]
      q, p = _TABLES[:, seen]
      said = verify(q[:_GAMMA], p, np.array(drafts), rng)
      tokens = [int(x) for x in said]
      text += tokens
      rows = {
        name: [traces.to_json(row, most) for row in of]
        for name, of in (('q', q if more else q[:_GAMMA]), ('p', p))
      }
      file.write(json.dumps(rows | {'drafts': drafts, 'tokens': tokens}) + '\n')
  return path


def _greedy_on_q(q, p, drafts, rng):
  """Verifies with relaxed acceptance, which keeps tokens likely under q."""
  for i, x in enumerate(drafts):
    if p[i, x] < 0.3 * p[i].max():
      return [*drafts[:i], rng.choice(_V, p=engines_test._left(q[i], p[i]))]
  return [*drafts, rng.choice(_V, p=p[-1])]


@pytest.mark.parametrize(
  ('verify', 'more', 'most'),
  [
    (engines_test._token, False, None),
    (engines_test._token, True, 3),
    (engines_test._block, False, 3),
    (engines_test._block, True, None),
  ],
)
def test_a_lossless_engine_passes(tmp_path, verify, more, most):
  found = traces.certify(_written(tmp_path / 'a', verify, more=more, most=most))
  assert found.passed
  assert found.low == 0
  assert found.blocks == 6000
  assert found.drifts[0].tokens == found.tokens
  # It would be seen if it were off by so much.
  assert max(drift.spread for drift in found.drifts) < 0.03


@pytest.mark.parametrize('most', [None, 3])
def test_a_relaxed_engine_fails_with_its_line_and_token(tmp_path, most):
  path = _written(tmp_path / 'a', _greedy_on_q, most=most)
  found = traces.certify(path)
  assert not found.passed
  by_kind = {drift.kind: drift for drift in found.drifts}
  worst = by_kind["the drafter's favourites"]
  assert worst.bias > 0.02
  line, token = worst.worst
  block = json.loads(path.read_text().splitlines()[line - 1])
  assert token in block['tokens']
  assert 'FAILED' in str(found)
  assert f'token {token}, first in line {line}' in str(found)


def test_a_port_that_forgets_its_last_cap_is_caught(tmp_path):
  # Its total variation is 0.04; it shows where the drafter is known throughout.
  # Small functions are called a million times: other tests check their types.
  with conftest.unchecked_types():
    path = _written(
      tmp_path / 'a', engines_test._uncapped, blocks=60_000, more=True
    )
    assert not traces.certify(path).passed


def test_a_rule_is_told_from_another(tmp_path):
  def lenient(q, p, drafts, rng):
    def law(i):
      d = methods.Distributions(*(np.float32(x) for x in (q[i], p[i]) * 2))
      pi = np.asarray(methods.METHODS['chow'].law(d, np.float32(0.5)))
      return np.float64(pi) / pi.sum(dtype=np.float64)

    pi = np.stack([*(law(i) for i in range(len(drafts))), p[-1]])
    return engines_test._token(q, pi, drafts, rng)

  path = _written(tmp_path / 'a', lenient, blocks=2500)
  assert traces.certify(path, 'chow', 0.5).passed
  assert not traces.certify(path).passed
  _written(path, lenient, blocks=3, most=3)
  with pytest.raises(ValueError, match='line 1: the law of chow needs the'):
    traces.certify(path, 'chow', 0.5)


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
    (dict(q=1), 'q must be'),
    (dict(q=[[0.0, 1.0]]), 'draft 0, token 0, has probability 0 in q'),
    *(
      (dict(q=[row]), 'a distribution must be a list of prob')
      for row in (
        [],
        5,
        [0.5, 0.4],
        [1.5, -0.5],
        ['a', 0.5],
        [float('nan'), 0.5],
        {'tokens': [2**70], 'probs': [1], 'rest': 0},
        {'tokens': [0], 'probs': [1]},
        {'tokens': [0], 'probs': [1.2], 'rest': -0.2},
        {'tokens': [0, 0], 'probs': [0.5, 0.5], 'rest': 0},
      )
    ),
    (dict(tokens=[]), r'got \[\] for the drafts \[0\]'),
    (dict(tokens=[1, 1]), 'must be the first drafts'),
    (dict(tokens=[0, 1, 1]), 'must be the first drafts'),
    (dict(tokens=[1] * 10**5), r'got \[(1, ){6}\.\.\.\] for'),
    (dict(drafts=[-1]), 'drafts'),
    (dict(drafts=[True]), 'drafts'),
  ],
)
def test_a_line_that_is_no_block_is_named(tmp_path, change, said):
  wrong = change if isinstance(change, str) else json.dumps(_GOOD | change)
  path = tmp_path / 'a'
  path.write_text(f'{json.dumps(_GOOD)}\n\n{wrong}\n')
  with pytest.raises(ValueError, match=f'^trace: .*, line 3: .*{said}'):
    traces.certify(path)


@pytest.mark.parametrize(
  ('name', 'written', 'said'),
  [
    (
      'a.jsonl.gz',
      gzip.compress(b'\n' * 999, mtime=0)[:-9],
      '.*ended before the end',
    ),
    ('a', None, 'there is no file'),
    ('a', b'\n', '.* has no block'),
  ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, name, written, said):
  if written is not None:
    (tmp_path / name).write_bytes(written)
  with pytest.raises(ValueError, match=f'^trace: {said}'):
    traces.certify(tmp_path / name)


def test_transformers_keeps_the_law():
  # Its own speculative sampling, of the bundled pair; see the script beside it.
  path = pathlib.Path(__file__).parent / 'peers' / 'transformers.jsonl.gz'
  found = traces.certify(path)
  assert found.passed
  assert found.blocks == 800
  # It is no rule that lets more pass: the law of what it drafts is another.
  unlikely = found.drifts[1]
  assert 0.2 < unlikely.declared < 0.5
  assert unlikely.share == pytest.approx(unlikely.declared, abs=0.03)


@pytest.mark.slow
def test_the_command_says_it_with_its_exit_code(tmp_path):
  good = _written(tmp_path / 'good', engines_test._token, blocks=800)
  bad = _written(tmp_path / 'bad', _greedy_on_q, blocks=3000)
  engine = tmp_path / 'engine.py'
  engine.write_text(
    f'import sys\nsys.path.append({str(pathlib.Path(__file__).parent)!r})\n'
    'from engines_test import _token as verify\n'
  )
  for flags, code, said in (
    ([f'--trace={good}'], 0, 'passed'),
    ([f'--trace={bad}'], 1, 'FAILED'),
    ([f'--function={engine}:verify'], 0, 'exact: all draws enumerated'),
    ([f'--function={engine}:verify', '--lenience=0.5'], 1, 'FAILED'),
    ([f'--function={engine}:other'], 2, "has no function 'other'"),
  ):
    flags += ['--method=speed', f'--workdir={tmp_path / "out"}']
    ran = launching.run('experiments.audit', *flags)
    assert ran.returncode == code, ran.stderr
    assert said in ran.stdout + ran.stderr
    if code < 2:
      (file,) = (tmp_path / 'out').glob('*.json')
      (found,) = json.loads(file.read_text())
      assert found['passed'] == (not code)
      file.unlink()
