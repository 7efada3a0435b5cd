"""How much of a drafter's drafts a verifier keeps; and tables of cards."""

from collections.abc import Iterable, Sequence
from typing import Any

from cascades.config import DecodingConfig
from cascades.models import checkpoints
from cascades.sampler import sampler

# More rows at a time, and on a CPU what is made of a large vocabulary lies in
# no cache.
_ROWS = 8


def strict(
  verifier: checkpoints.Checkpoint,
  drafter: Any,
  prompts: Sequence[str],
  gamma: int,
  **asked: Any,
) -> dict[str, dict[str, float]]:
  """Answers prompts.

  Args:
    verifier: Verifies.
    drafter: Drafts; whatever `Sampler` takes.
    prompts: Texts that neither was trained on.
    gamma: Tokens drafted per block.
    **asked: As for `Sampler.sample`.

  Returns:
    At 'temperature 1' and 'temperature 0', of both: 'acceptance', accepted by
    examined drafts, and 'tokens per verifier call'.
  """
  found = {}
  for temperature in (1.0, 0.0):
    decoding = sampler.Sampler(
      *(verifier, drafter),
      config=DecodingConfig(
        method='speed',
        lenience=0.0,
        gamma=gamma,
        temperature=temperature,
        batch_size=_ROWS,
      ),
    )
    answers = decoding.sample(prompts, **asked)
    accepted, examined, calls = (
      sum(answer.counts[name] for answer in answers)
      for name in ('accepted', 'examined', 'verifier_calls')
    )
    emitted = sum(len(answer.logprobs) for answer in answers)
    found[f'temperature {temperature:g}'] = {
      'acceptance': accepted / examined,
      'tokens per verifier call': emitted / calls,
    }
  return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """A table as a card shows it."""
  lines = ['| ' + ' | '.join(row) + ' |' for row in (head, *rows)]
  return '\n'.join([lines[0], '|---' * len(head) + '|', *lines[1:]])


def by_task(figures: dict[str, dict[str, float]]) -> str:
  """A table of figures of tasks."""
  return table(
    ('task', 'score', 'value'),
    [
      (task, name, f'{value:.3f}')
      for task, of_task in figures.items()
      for name, value in of_task.items()
    ],
  )
