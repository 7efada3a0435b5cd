"""GSM8K: grade school mathematics in words (Cobbe et al. 2021, 2110.14168).

The file is `test.jsonl` of github.com/openai/grade-school-math, MIT licence: a
line per problem with `question` and `answer`, whose last line is `#### N`.

An answer is right if its final number is: the first number after `####`, or
else the last number of the answer. The score `marked` tells the two apart.
"""

from experiments.tasks.final_numbers import MARK, marked_number
from experiments.tasks.sources import DamagedError, Source, get_text
from experiments.tasks.task import published_task, question_prompt


def _problem(row, number):
  """Returns (key, question, reference) of a row."""
  question, answer = get_text(row, 'question'), get_text(row, 'answer')
  if marked_number(answer) is None:
    raise DamagedError(f"has an 'answer' without a number after {MARK}")
  return str(number), question_prompt(question), answer


TASK = published_task(
  'gsm8k',
  Source(
    download='test.jsonl of github.com/openai/grade-school-math',
    hub='openai/gsm8k',
    config='main',
  ),
  _problem,
  metrics=('final_number',),
  shots=8,
  # A blank line does not end an answer: some reference answers contain one.
  stop_strings=('\nQuestion:',),
  max_new_tokens=400,
)
