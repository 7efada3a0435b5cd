"""Spec-Bench: prompts for measuring speed (Xia et al. 2024, arXiv 2401.07851).

480 prompts, 80 each of six categories: conversations of MT-bench, translation,
summarisation, questions, mathematics, and questions with retrieved passages.
The file is `question.jsonl` of github.com/hemingkx/Spec-Bench
(`data/spec_bench`), whose repository is Apache-2.0: a line per prompt with
`question_id`, `category` and `turns`.

The set has no reference answers, so there is no score and quality is nan. Only
the first turn of a conversation is used: a second turn depends on the answer to
the first. The category is part of an example's id.
"""

from experiments.tasks.sources import (
  DamagedError,
  Source,
  get_field,
  get_text,
  get_texts,
)
from experiments.tasks.task import published_task, question_prompt

# Categories that are not of MT-bench, which has its own.
CATEGORIES = ('translation', 'summarization', 'qa', 'math_reasoning', 'rag')


def _problem(row, number):
  category, key = get_text(row, 'category'), get_field(row, 'question_id', int)
  turns = get_texts(row, 'turns')
  if not turns:
    raise DamagedError("has no text in 'turns'")
  group = category if category in CATEGORIES else 'mt_bench'
  return f'{group}/{key}', question_prompt(turns[0]), ()


TASK = published_task(
  'spec_bench',
  Source(
    download='question.jsonl of github.com/hemingkx/Spec-Bench',
    splits={'test': 'test'},
  ),
  _problem,
  metrics=(),
  stop_strings=('\nQuestion:',),
  # The limit of the benchmark.
  max_new_tokens=1024,
)
