"""Tests of the schema of a result line and of its files."""

import dataclasses
import json
import math

import counts
import pytest
from answers import make_failure, make_record, make_trace

from cascades.config import DecodingConfig
from experiments import records, tasks

RECORD = make_record(
  method='opt', text=' vier ☃', deferred=None, emitted=2, examined=1, residual=0
)
TRACE = make_trace(
  'db',
  token_strings=[' vier ☃', ''],
  deferred=[0, 1],
  logprobs=[-0.5, -math.inf],
)


def at(lenience):
  return dataclasses.replace(RECORD, lenience=lenience)


def test_a_line_holds_a_record_in_strict_json():
  def refuse(constant):
    raise AssertionError(f'{constant} is not JSON')

  for lenience in (0.5, 1, math.inf, -math.inf):
    line = records.dumps(at(lenience))
    assert '\n' not in line
    json.loads(line, parse_constant=refuse)
    assert records.loads(line) == at(lenience)
  for field in ('lenience', 'wall_s', 'quality'):
    record = dataclasses.replace(RECORD, **{field: math.nan}, scores={})
    line = records.dumps(record)
    json.loads(line, parse_constant=refuse)
    back = records.loads(line)
    assert math.isnan(getattr(back, field))
    assert back.scores == {}


_VIEW = records.View(
  point='sums-opt',
  lenience=0.5,
  id='0',
  q=[0.5, 0.5],
  p=[0.5, 0.5],
  pi=[0.5, 0.5],
  deferred=[0, 1],
  drafter_argmax=['\n', 'b'],
  verifier_argmax=['☃', 'b'],
  rejected=[None, 'c'],
)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'token_strings': ['a']}, 'token_strings must be as long as tokens, got'),
    ({'sources': [0, 1]}, 'sources must be as long'),
    ({'logprobs': []}, 'logprobs must be as long'),
    ({'deferred': [0]}, 'deferred must be as long'),
    ({'deferred': [0, 2, 0]}, 'deferred must be 0 or 1, got 2'),
    ({'sources': [99, 1, 1]}, 'sources must be 0 to 3, got 99'),
    *(
      ({name: [], 'point': 'of a view'}, f'{name} must be as long as q')
      for name in (
        *('p', 'pi', 'deferred', 'rejected'),
        *('drafter_argmax', 'verifier_argmax'),
      )
    ),
  ],
)
def test_a_trace_and_a_view_say_the_same_of_each_token(changes, message):
  whole = _VIEW if 'point' in changes else make_trace('drb')
  assert records.loads(records.dumps(whole), type(whole)) == whole
  line = records.dumps(dataclasses.replace(whole, **changes))
  with pytest.raises(ValueError, match=message):
    records.loads(line, type(whole))


def test_a_view_is_found_by_what_it_is_of(tmp_path):
  other = dataclasses.replace(_VIEW, lenience=math.nan, deferred=None)
  path = tmp_path / 'views' / 'sums.jsonl'
  records.write(path, [other, _VIEW])
  found = records.read_views(tmp_path)
  assert found[records.view_key('sums-opt', 0.5, '0')] == _VIEW
  assert found[records.view_key('sums-opt', math.nan, '0')].deferred is None
  assert len(found) == 2
  path.write_bytes(path.read_bytes()[:-1])
  assert records.read_views(tmp_path) == {}


def test_points_are_told_apart_by_their_coordinates():
  line = records.dumps(at(math.nan))
  # nan is one point, although it is not equal to itself.
  one, two = (records.loads(line) for _ in range(2))
  assert one.point == two.point
  assert len({one.point, two.point}) == 1
  assert one.point != at(0.0).point
  changes = dict(task='x', method='chow', lenience=9, gamma=9, drafts=2)
  changes |= dict(verification='block', gate='processed', temperature=9)
  for name, value in (changes | dict(bonus_from='verifier')).items():
    assert dataclasses.replace(RECORD, **{name: value}).point != RECORD.point


@pytest.mark.parametrize('reference', ['vier', ('vier', '4'), ()])
def test_what_was_asked_is_kept_once(tmp_path, reference):
  example = tasks.Example(id='7', prompt='2+2=\n', reference=reference)
  records.write(tmp_path / 'examples/sums.jsonl', [example])
  assert records.read_examples(tmp_path) == {'sums': {'7': example}}
  assert records.read_examples(tmp_path / 'nowhere') == {}


def test_traces_are_packed_into_the_same_bytes(tmp_path):
  path = tmp_path / 'traces/a.jsonl.gz'
  records.write(path, [TRACE] * 99)
  packed = path.read_bytes()
  assert len(packed) < 300
  assert records.read_traces(tmp_path, 'a') == [TRACE] * 99
  records.write(path, [TRACE] * 99)
  assert path.read_bytes() == packed
  path.write_bytes(packed[:-20])
  with pytest.raises(ValueError, match=r'a\.jsonl\.gz:\d+: damaged record'):
    records.read_traces(tmp_path, 'a')
  with pytest.raises(ValueError, match=r'b\.jsonl\.gz is missing; run'):
    records.read_traces(tmp_path, 'b')


def test_a_record_says_what_options_it_is_of():
  given = dict(verification='k_seq', gate='processed', bonus='verifier')
  given |= dict(method='cascade_opt', lenience=9, gamma=2, temperature=0)
  options = DecodingConfig(**given, drafts=3)
  names = dict(task='sums', lenience=math.nan, id='0')
  told = records.decoding_fields(options, **names)
  record, _ = records.failed_example('It is too long.', **told)
  assert RECORD.variant == 'opt'
  assert record.variant == 'opt k_seq gate processed bonus verifier 3 drafts'
  assert record.point == ('sums', 'opt', None, 2, *record.options, 0.0)
  assert set(told) < {field.name for field in dataclasses.fields(record)}


def test_a_failure_has_no_score_and_counts_nothing():
  record, trace = make_failure(RECORD, 'It is too long.')
  assert (record.point, record.failure) == (RECORD.point, 'It is too long.')
  assert math.isnan(record.quality)
  counts.check(record, trace)
  again = records.loads(records.dumps(record))
  assert (again.scores, again.emitted) == ({}, 0)


def test_other_fields_are_refused_by_name():
  fields = json.loads(records.dumps(RECORD))
  with pytest.raises(ValueError, match='rejected is not a known field'):
    records.loads(json.dumps(fields | {'rejected': 3}))
  del fields['accepted']
  with pytest.raises(ValueError, match='accepted is missing'):
    records.loads(json.dumps(fields))


def test_files_are_read_in_name_order(tmp_path):
  with pytest.raises(ValueError, match=r'run experiments\.sweep first'):
    records.read_all(tmp_path)
  records.write(tmp_path / 'records' / 'b.jsonl', [at(2.0)])
  records.write(tmp_path / 'records' / 'a.jsonl', [at(1.0), at(0.0)])
  # A file that is still being written does not count.
  (tmp_path / 'records' / '.c.jsonl.part').write_text('{"task":')
  assert [r.lenience for r in records.read_all(tmp_path)] == [1.0, 0.0, 2.0]


@pytest.mark.parametrize(
  'damage',
  # The last might be read, were it not cut off before its end.
  ['{"task": "su\n', '[]\n', '3\n', 'null\n', '\n', records.dumps(RECORD)],
)
def test_a_damaged_line_is_named(tmp_path, damage):
  path = tmp_path / 'a.jsonl'
  path.write_text(f'{records.dumps(RECORD)}\n{damage}')
  with pytest.raises(ValueError, match=r'a\.jsonl:2: damaged record'):
    records.read(path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
  path = tmp_path / 'a.jsonl'
  records.write(path, [RECORD])
  with pytest.raises(UnicodeEncodeError):
    records.write_text(path, 'half a file \ud800')
  # Not a record: fails inside the write.
  for name in ('a.jsonl', 'b.jsonl'):
    with pytest.raises(TypeError):
      records.write(tmp_path / name, iter([RECORD, records.read_all]))
  assert records.read(path) == [RECORD]
  assert [p.name for p in tmp_path.iterdir()] == ['a.jsonl']
