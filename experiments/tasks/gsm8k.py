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


# Written for this project.
WORKED = (
  (
    'A bakery fills 6 trays with 12 rolls each. By noon it has sold 45 rolls.'
    ' How many rolls are left?',
    '6 trays hold 6 * 12 = 72 rolls.\nAfter the sale 72 - 45 = 27 rolls are'
    ' left.\n#### 27',
  ),
  (
    'Mirela earns $14 an hour. On Saturday she works 5 hours, on Sunday 3 hours'
    ' at double pay. What does she earn on the weekend, in dollars?',
    'On Saturday she earns 5 * 14 = 70 dollars.\nAn hour on Sunday pays'
    ' 2 * 14 = 28 dollars.\nOn Sunday she earns 3 * 28 = 84 dollars.\nTogether'
    ' that is 70 + 84 = 154 dollars.\n#### 154',
  ),
  (
    'A rope is 30 metres long. Tomas cuts off a third of it, and then 8 metres'
    ' more. How long is what remains?',
    'A third of the rope is 30 / 3 = 10 metres.\nHe cuts off 10 + 8 = 18 metres'
    ' in all.\nWhat remains is 30 - 18 = 12 metres long.\n#### 12',
  ),
  (
    'There are 4 times as many sheep as goats on a farm, and 35 animals in all.'
    ' How many sheep are there?',
    'For each goat there are 4 sheep, which makes groups of 1 + 4 = 5'
    ' animals.\nThere are 35 / 5 = 7 such groups.\nSo there are 7 * 4 = 28'
    ' sheep.\n#### 28',
  ),
  (
    'A coat costs $80. Its price falls by 25%, and Lena has a voucher for $10.'
    ' What does she pay, in dollars?',
    '25% of 80 is 80 * 25 / 100 = 20 dollars.\nThe price falls to 80 - 20 = 60'
    ' dollars.\nWith the voucher she pays 60 - 10 = 50 dollars.\n#### 50',
  ),
  (
    'A bus starts with 18 people. At the first stop 7 get off and 13 get on, at'
    ' the second half of those on board get off. How many are left?',
    'After the first stop 18 - 7 + 13 = 24 people are on board.\nHalf of them,'
    ' 24 / 2 = 12, get off.\nSo 24 - 12 = 12 people are left.\n#### 12',
  ),
  (
    'Yusuf reads 20 pages a day. His book has 340 pages, and he has read 100 of'
    ' them. In how many days will he be done?',
    'He still has 340 - 100 = 240 pages to read.\nThat takes him 240 / 20 = 12'
    ' days.\n#### 12',
  ),
  (
    'A tank holds 500 litres and is two fifths full. A pump adds 15 litres a'
    ' minute. How full is it, in litres, after 12 minutes?',
    'At first there are 500 * 2 / 5 = 200 litres.\nThe pump adds 15 * 12 = 180'
    ' litres.\nThen there are 200 + 180 = 380 litres.\n#### 380',
  ),
)

TASK = published_task(
  'gsm8k',
  Source(
    download='test.jsonl of github.com/openai/grade-school-math',
    hub='openai/gsm8k',
    config='main',
  ),
  _problem,
  metrics=('final_number',),
  worked_examples=tuple(
    (question_prompt(question), answer) for question, answer in WORKED
  ),
  shots=8,
  # A blank line does not end an answer: some reference answers contain one.
  stop_strings=('\nQuestion:',),
  max_new_tokens=400,
)
