"""How short answers are compared with those that a question set accepts.

Both scores are those of SQuAD (Rajpurkar et al. 2016, arXiv 1606.05250): texts
are compared without case, ASCII punctuation, articles and spacing, and the
accepted answer that fits best counts.
"""

import collections
import re
import string

from experiments.tasks.task import Reference

_PUNCTUATION = str.maketrans('', '', string.punctuation)
_ARTICLES = re.compile(r'\b(a|an|the)\b')


def normalise(text: str) -> str:
  """A text without what does not count: 'The  U.S.A.' is 'usa'."""
  text = text.lower().translate(_PUNCTUATION)
  return ' '.join(_ARTICLES.sub(' ', text).split())


def accepted(reference: Reference) -> tuple[str, ...]:
  """The accepted answers, one or several, as a tuple."""
  return (reference,) if isinstance(reference, str) else tuple(reference)


def exact_match(answer: str, reference: Reference) -> float:
  """1 if the answer is one of those accepted, else 0; none fits no answer."""
  said = normalise(answer)
  return float(any(said == normalise(text) for text in accepted(reference)))


def f1(answer: str, reference: Reference) -> float:
  """Harmonic mean of the shares of words in common, with the best reference."""
  said = normalise(answer).split()
  return max(
    (_f1(said, normalise(t).split()) for t in accepted(reference)), default=0.0
  )


def _f1(said: list[str], wanted: list[str]) -> float:
  if not said or not wanted:
    # What has no words is either the same or has nothing in common.
    return float(said == wanted)
  common = collections.Counter(said) & collections.Counter(wanted)
  return 2 * common.total() / (len(said) + len(wanted))
