"""Spec-Bench: prompts for measuring speed (Xia et al. 2024, arXiv 2401.07851).

480 prompts, 80 each of six categories: conversations of MT-bench, translation,
summarisation, questions, mathematics, and questions with retrieved passages.
The file is `question.jsonl` of github.com/hemingkx/Spec-Bench
(`data/spec_bench`), whose repository is Apache-2.0: a line per prompt with
`question_id`, `category` and `turns`.

Nothing says what a good answer is, so there is no score and quality is nan. Of
a conversation, only the first turn is taken: what a second one is depends on
the answer to the first. The category stands in an example's id.
"""

from experiments.tasks.sources import (
  DamagedError,
  Source,
  take,
  take_text,
  take_texts,
)
from experiments.tasks.task import ask, benchmark

# What does not come from MT-bench, which has categories of its own.
CATEGORIES = ('translation', 'summarization', 'qa', 'math_reasoning', 'rag')


def _problem(row, number):
  category, key = take_text(row, 'category'), take(row, 'question_id', int)
  turns = take_texts(row, 'turns')
  if not turns:
    raise DamagedError("has no text in 'turns'")
  group = category if category in CATEGORIES else 'mt_bench'
  return f'{group}/{key}', ask(turns[0]), ()


TASK = benchmark(
  'spec_bench',
  Source(
    get='question.jsonl of github.com/hemingkx/Spec-Bench',
    splits={'test': 'test'},
  ),
  _problem,
  score=lambda answer, reference: {},
  metric=None,
  stops=('\nQuestion:',),
  # As its authors have it.
  max_new_tokens=1024,
)
