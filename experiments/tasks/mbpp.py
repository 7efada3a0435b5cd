"""MBPP: small Python programs from a sentence and tests (Austin et al. 2021).

The file is `mbpp.jsonl` of github.com/google-research/google-research, folder
mbpp, CC BY 4.0 (arXiv 2108.07732): a line per task with `task_id`, `text`,
`code`, `test_list`, `test_setup_code` and `challenge_test_list`. The ids decide
the split, as published: 11 to 510 are the test split.

An answer passes if the three tests of `test_list`, which the prompt shows, pass
after it; the challenge tests are not used, as is usual. `sandbox` runs the
answer, and loading the task requires permission for that.
"""

from experiments.tasks.answer_metrics import CODE_END
from experiments.tasks.sources import (
  DamagedError,
  Source,
  get_field,
  get_text,
  get_texts,
)
from experiments.tasks.task import published_task

# First and last id of each split; the first ten tasks are for prompts.
_IDS = {'train': (601, 974), 'validation': (511, 600), 'test': (11, 510)}


def _question(text: str, tests: tuple[str, ...]) -> str:
  assertions = '\n'.join(tests)
  return (
    f'Task: {text}\nThese tests must pass:\n{assertions}\nAnswer:\n'
    f'{CODE_END}python'
  )


def _answer(code: str) -> str:
  return f'\n{code}\n{CODE_END}'


def _is_in_split(row, split: str) -> bool:
  first, last = _IDS[split]
  return first <= get_field(row, 'task_id', int) <= last


def _problem(row, number):
  del number
  tests = get_texts(row, 'test_list')
  if not tests:
    raise DamagedError("has an empty 'test_list'")
  # A few tasks have setup code that their tests depend on.
  setup = get_field(row, 'test_setup_code').strip()
  harness = '\n'.join((setup, *tests)).strip()
  return (
    str(get_field(row, 'task_id', int)),
    _question(get_text(row, 'text'), tests),
    f'{_answer(get_text(row, "code"))}\n{harness}',
  )


TASK = published_task(
  'mbpp',
  Source(
    download=(
      'mbpp.jsonl of github.com/google-research/google-research, folder mbpp'
    ),
    hub='google-research-datasets/mbpp',
    config='full',
    splits={split: split for split in _IDS},
    is_in_split=_is_in_split,
  ),
  _problem,
  metrics=('pass_at_1',),
  separator='',
  shots=3,
  stop_strings=(CODE_END,),
  max_new_tokens=512,
  runs_code=True,
)
