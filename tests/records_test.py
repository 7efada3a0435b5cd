"""Tests of the schema of a result line and of its files."""

import dataclasses
import json
import math

import counts
import pytest

from cascades.sampler.options import Options
from experiments import records, tasks

RECORD = records.Record(
  task='sums',
  method='opt',
  lenience=0.5,
  gamma=4,
  verification='token',
  gate='raw',
  bonus_from='target',
  drafts=1,
  temperature=1.0,
  id='0',
  failure=None,
  text=' vier ☃',
  quality=1.0,
  scores={'exact': 1.0},
  emitted=2,
  ended=True,
  drafted=4,
  examined=1,
  accepted=1,
  deferred=None,
  residual=0,
  bonus=1,
  verifier_calls=1,
  verifier_tokens=5,
  drafter_calls=5,
  wall_s=0.125,
)
TRACE = records.Trace(
  id='0',
  tokens=[7, 1],
  pieces=[' vier ☃', ''],
  sources=[1, 3],
  deferred=[0, 1],
  logprobs=[-0.5, -math.inf],
)


def at(lenience):
  return dataclasses.replace(RECORD, lenience=lenience)


@pytest.mark.parametrize('lenience', [0.5, 1, math.inf, -math.inf])
def test_a_line_holds_a_record(lenience):
  line = records.dumps(at(lenience))
  assert '\n' not in line
  assert records.loads(line) == at(lenience)


def test_a_line_is_strict_json():
  def refuse(constant):
    raise AssertionError(f'{constant} is not JSON')

  for lenience in (math.nan, math.inf, -math.inf):
    json.loads(records.dumps(at(lenience)), parse_constant=refuse)


def test_no_lenience_survives_a_line():
  back = records.loads(records.dumps(at(math.nan)))
  assert math.isnan(back.lenience)


def test_a_view_is_found_by_what_it_is_of(tmp_path):
  view = records.View(
    point='sums-opt',
    lenience=math.nan,
    id='0',
    q=[0.5],
    p=[1.0],
    pi=[0.75],
    deferred=None,
    drafter=['\n'],
    verifier=['☃'],
  )
  other = dataclasses.replace(view, lenience=0.5, deferred=[1])
  path = tmp_path / 'views' / 'sums.jsonl'
  records.write(path, [view, other])
  found = records.read_views(tmp_path)
  assert found[records.view_key('sums-opt', math.nan, '0')].verifier == ['☃']
  assert found[records.view_key('sums-opt', 0.5, '0')] == other
  assert len(found) == 2
  path.write_bytes(path.read_bytes()[:-1])
  assert records.read_views(tmp_path) == {}


def test_points_without_lenience_are_one_point():
  line = records.dumps(at(math.nan))
  one, two = (records.loads(line) for _ in range(2))
  assert one.point == two.point
  assert len({one.point, two.point}) == 1
  assert one.point != at(0.0).point


@pytest.mark.parametrize(
  ('field', 'value'),
  [
    ('task', 'x'),
    ('method', 'chow'),
    ('lenience', 9),
    ('gamma', 9),
    ('verification', 'block'),
    ('gate', 'processed'),
    ('bonus_from', 'verifier'),
    ('drafts', 2),
    ('temperature', 9),
  ],
)
def test_each_coordinate_makes_another_point(field, value):
  assert dataclasses.replace(RECORD, **{field: value}).point != RECORD.point


@pytest.mark.parametrize(
  ('changes', 'name'),
  [
    ({}, 'opt'),
    ({'verification': 'block'}, 'opt block'),
    ({'verification': 'sequential'}, 'opt sequential'),
    ({'gate': 'processed'}, 'opt gate processed'),
    ({'bonus_from': 'verifier'}, 'opt bonus verifier'),
    ({'verification': 'k_seq', 'drafts': 4}, 'opt k_seq 4 drafts'),
    (
      {
        'verification': 'block',
        'gate': 'processed',
        'bonus_from': 'verifier',
      },
      'opt block gate processed bonus verifier',
    ),
  ],
)
def test_a_variant_names_what_is_not_standard(changes, name):
  assert dataclasses.replace(RECORD, **changes).variant == name


def test_options_have_the_names_that_configs_and_records_know():
  assert records.OPTIONS == {
    'verification': 'token',
    'gate': 'raw',
    'bonus': 'target',
    'drafts': 1,
    'schedule': 'constant',
    'cap': 'none',
  }


def test_a_clock_that_says_nothing_survives_a_line():
  line = records.dumps(dataclasses.replace(RECORD, wall_s=math.nan))
  assert math.isnan(records.loads(line).wall_s)


def test_no_quality_survives_a_line():
  record = dataclasses.replace(RECORD, quality=math.nan, scores={})
  back = records.loads(records.dumps(record))
  assert math.isnan(back.quality)
  assert back.scores == {}


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
  with pytest.raises(ValueError, match=r'there is no .*b\.jsonl\.gz'):
    records.read_traces(tmp_path, 'b')


def test_a_record_says_what_options_it_is_of():
  options = Options(
    method='cascade_opt',
    lenience=9,
    gamma=2,
    temperature=0,
    verification='k_seq',
    gate='processed',
    bonus='verifier',
    drafts=3,
  )
  told = records.told(options, task='sums', lenience=math.nan, id='0')
  record, _ = records.failure('It is too long.', **told)
  assert record.variant == 'opt k_seq gate processed bonus verifier 3 drafts'
  assert record.point == ('sums', 'opt', None, 2, *record.options, 0.0)
  assert set(told) < {field.name for field in dataclasses.fields(record)}


def test_a_failure_has_no_score_and_counts_nothing():
  told = {
    name: getattr(RECORD, name)
    for name in (
      'task method lenience gamma verification gate bonus_from drafts'
      ' temperature id'
    ).split()
  }
  record, trace = records.failure('It is too long.', **told)
  assert (record.point, record.failure) == (RECORD.point, 'It is too long.')
  assert math.isnan(record.quality)
  counts.check(record, trace)
  again = records.loads(records.dumps(record))
  assert (again.scores, again.emitted) == ({}, 0)


@pytest.mark.parametrize('change', ['missing', 'unknown'])
def test_other_fields_are_refused_by_name(change):
  fields = json.loads(records.dumps(RECORD))
  if change == 'missing':
    del fields['accepted']
  else:
    fields['rejected'] = 3
  with pytest.raises(ValueError, match=r'fields: (accepted|rejected)\.'):
    records.loads(json.dumps(fields))


def test_files_are_read_in_name_order(tmp_path):
  records.write(tmp_path / 'records' / 'b.jsonl', [at(2.0)])
  records.write(tmp_path / 'records' / 'a.jsonl', [at(1.0), at(0.0)])
  # A file that is still being written does not count.
  (tmp_path / 'records' / '.c.jsonl.part').write_text('{"task":')
  leniences = [r.lenience for r in records.read_all(tmp_path)]
  assert leniences == [1.0, 0.0, 2.0]


@pytest.mark.parametrize('damage', ['{"task": "su', '[]', '3', 'null', ''])
def test_a_damaged_line_is_named(tmp_path, damage):
  path = tmp_path / 'a.jsonl'
  path.write_text(f'{records.dumps(RECORD)}\n{damage}\n')
  with pytest.raises(ValueError, match=r'a\.jsonl:2: damaged record'):
    records.read(path)


def test_a_line_that_was_cut_off_is_damaged(tmp_path):
  path = tmp_path / 'a.jsonl'
  whole = f'{records.dumps(RECORD)}\n' * 2
  # It might be read, were it not for its end.
  path.write_text(whole[:-1])
  with pytest.raises(ValueError, match=r'a\.jsonl:2: damaged record'):
    records.read(path)


def test_no_records_say_what_to_do(tmp_path):
  with pytest.raises(ValueError, match=r'run experiments\.sweep first'):
    records.read_all(tmp_path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
  path = tmp_path / 'a.jsonl'
  records.write(path, [RECORD])
  with pytest.raises(UnicodeEncodeError):
    records.write_text(path, 'half a file \ud800')
  assert records.read(path) == [RECORD]
  assert [p.name for p in tmp_path.iterdir()] == ['a.jsonl']
