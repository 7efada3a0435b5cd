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


# Written for this project.
_WORKED = (
  (
    'Write a function to count the words of a sentence that are longer than n'
    ' letters.',
    (
      'assert count_long_words("the owl sleeps in the barn", 3) == 2',
      'assert count_long_words("one two six", 3) == 0',
      'assert count_long_words("", 1) == 0',
    ),
    'def count_long_words(sentence, n):\n'
    '  return sum(len(word) > n for word in sentence.split())',
  ),
  (
    'Write a python function to find the second smallest of the different'
    ' numbers in a list, or None if there is no such number.',
    (
      'assert second_smallest([4, 1, 9, 1]) == 4',
      'assert second_smallest([7, 7]) == None',
      'assert second_smallest([-2, 5, 0]) == 0',
    ),
    'def second_smallest(numbers):\n'
    '  different = sorted(set(numbers))\n'
    '  if len(different) < 2:\n'
    '    return None\n'
    '  return different[1]',
  ),
  (
    'Write a function to turn a time of day, given as "hours:minutes", into'
    ' minutes since midnight.',
    (
      'assert minutes_since_midnight("00:00") == 0',
      'assert minutes_since_midnight("07:45") == 465',
      'assert minutes_since_midnight("23:59") == 1439',
    ),
    'def minutes_since_midnight(time):\n'
    '  hours, minutes = time.split(":")\n'
    '  return 60 * int(hours) + int(minutes)',
  ),
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
  worked_examples=tuple(
    (_question(text, tests), _answer(code)) for text, tests, code in _WORKED
  ),
  separator='',
  shots=3,
  stop_strings=(CODE_END,),
  max_new_tokens=512,
  runs_code=True,
)
