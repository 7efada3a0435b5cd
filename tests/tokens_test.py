"""Tests of an answer's tokens on the page: blocks and titles."""

import dataclasses

import pytest
import report_test
from answers import make_trace

from experiments import tasks
from experiments.reports import answers, styles

_DRAFT, _RESIDUAL, _BONUS = 'drb'


def _record(trace, method='opt', **changes):
  counts = dict(emitted=len(trace.tokens))
  return report_test.make_record('sums', method, 0.5, 0, **counts | changes)


def _selected(trace, record=None):
  example = tasks.Example(id='0', prompt='?', reference='!')
  return answers.SelectedAnswer(record or _record(trace), trace, example)


def _tokens(trace, index=None, **changes):
  """The tokens of an answer as the page shows them."""
  selected = _selected(trace, _record(trace, **changes))
  looks = styles.styles({'opt': 'opt'})
  blocks = answers.lane(selected, looks, index).blocks
  return [token for block in blocks for token in block]


@pytest.mark.parametrize(
  ('sources', 'sizes'),
  [
    ([], []),
    ([_BONUS], [1]),
    ([_DRAFT, _RESIDUAL, _RESIDUAL, _DRAFT, _DRAFT, _BONUS], [2, 1, 3]),
    # It ended inside a block.
    ([_DRAFT, _BONUS, _DRAFT], [2, 1]),
    ([_DRAFT, _DRAFT], [2]),
  ],
)
def test_a_block_is_drafts_and_what_ends_them(sources, sizes):
  trace = make_trace(sources)
  answer_blocks = answers.blocks(_record(trace), trace)
  assert list(map(len, answer_blocks)) == sizes
  assert [i for block in answer_blocks for i in block] == list(
    range(len(sources))
  )


def test_the_verifier_alone_has_a_block_for_each_token():
  trace = make_trace([_BONUS] * 3)
  record = _record(trace, 'verifier_only')
  assert list(map(len, answers.blocks(record, trace))) == [1, 1, 1]


def test_titles_say_what_is_known():
  trace = make_trace([_DRAFT, _RESIDUAL], deferred=[0, 1], rejected=[None, 7])
  assert [x.details for x in _tokens(trace)] == [
    'accepted draft, token 0\nthe rule keeps the token',
    'residual, token 1\nrejected draft: token 7\n'
    'the rule defers the draft rejected here',
  ]
  # Without a rule nothing is deferred, and nothing said of it.
  ruleless = dataclasses.replace(trace, deferred=None)
  assert not any('rule' in x.details for x in _tokens(ruleless))


@pytest.mark.parametrize(
  ('longer', 'index'), [([5, 6, 7], 2), ([5, 9], 1), ([5, 6], None)]
)
def test_the_first_token_that_differs_is_framed(longer, index):
  pair = [
    _selected(make_trace([_DRAFT] * len(ids), tokens=ids))
    for ids in (longer, [5, 6])
  ]
  assert answers.parting(pair) == index
  assert answers.parting(pair[:1]) is None
  framed = ['parts' in x.classes for x in _tokens(pair[0].trace, index)]
  assert framed == [i == index for i in range(len(longer))]
