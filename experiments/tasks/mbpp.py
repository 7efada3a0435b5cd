"""MBPP: small Python programs from a sentence and tests (Austin et al. 2021).

The file is `mbpp.jsonl` of github.com/google-research/google-research, folder
mbpp, CC BY 4.0 (arXiv 2108.07732): a line per task with `task_id`, `text`,
`code`, `test_list`, `test_setup_code` and `challenge_test_list`. The ids decide
the split, as published: 11 to 510 are the test split.

An answer passes if the three tests of `test_list`, which the prompt shows, pass
after it; the challenge tests are left aside, as is usual. It is run, by
`sandbox`: who loads the task must say that this is wanted.
"""

from experiments.tasks import sandbox
from experiments.tasks.sources import (
  DamagedError,
  Source,
  take,
  take_text,
  take_texts,
)
from experiments.tasks.task import benchmark

# First and last id of each split; the first ten tasks are for prompts.
_IDS = {'train': (601, 974), 'validation': (511, 600), 'test': (11, 510)}
# Where an answer ends, and, in a reference, where the tests begin.
_END = '```'


def _ask(text: str, tests: tuple[str, ...]) -> str:
  shown = '\n'.join(tests)
  return f'Task: {text}\nThese tests must pass:\n{shown}\nAnswer:\n{_END}python'


def _answer(code: str) -> str:
  return f'\n{code}\n{_END}'


def _of_split(row, split: str) -> bool:
  first, last = _IDS[split]
  return first <= take(row, 'task_id', int) <= last


def _problem(row, number):
  del number
  tests = take_texts(row, 'test_list')
  if not tests:
    raise DamagedError("has an empty 'test_list'")
  # A few tasks have it: it makes what their tests look at.
  setup = take(row, 'test_setup_code').strip()
  harness = '\n'.join((setup, *tests)).strip()
  return (
    str(take(row, 'task_id', int)),
    _ask(take_text(row, 'text'), tests),
    f'{_answer(take_text(row, "code"))}\n{harness}',
  )


def score(answer: str, reference: str) -> dict[str, float]:
  """Whether a program passes its tests, and whether it had to be stopped.

  Args:
    answer: Python text.
    reference: A right program, the mark of its end, and the tests.

  Raises:
    ValueError: Programs cannot be confined here.
  """
  _, _, tests = reference.partition(_END)
  outcome = sandbox.run(answer, tests)
  return {
    'pass@1': float(outcome.passed),
    'stopped': float(outcome.result in ('timeout', 'output')),
  }


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

TASK = benchmark(
  'mbpp',
  Source(
    get='mbpp.jsonl of github.com/google-research/google-research, folder mbpp',
    hub='google-research-datasets/mbpp',
    config='full',
    splits={split: split for split in _IDS},
    of_split=_of_split,
  ),
  _problem,
  score=score,
  metric='pass@1',
  worked=tuple(
    (_ask(text, tests), _answer(code)) for text, tests, code in _WORKED
  ),
  joint='',
  shots=3,
  stops=(_END,),
  max_new_tokens=512,
  runs_code=True,
)
