"""Comparison of short answers with the answers that a question set accepts.

Both scores are those of SQuAD (Rajpurkar et al. 2016, arXiv 1606.05250): texts
are compared without case, ASCII punctuation, articles and repeated spaces, and
the best accepted answer counts.
"""

import collections
import re
import string

# One accepted answer, or several.
Reference = str | tuple[str, ...]

_PUNCTUATION = str.maketrans('', '', string.punctuation)
_ARTICLES = re.compile(r'\b(a|an|the)\b')


def normalise(text: str) -> str:
  """Returns a text in SQuAD's normal form: 'The  U.S.A.' becomes 'usa'."""
  text = text.lower().translate(_PUNCTUATION)
  return ' '.join(_ARTICLES.sub(' ', text).split())


def accepted_answers(reference: Reference) -> tuple[str, ...]:
  """Returns the accepted answers as a tuple."""
  return (reference,) if isinstance(reference, str) else tuple(reference)


def exact_match(answer: str, reference: Reference) -> float:
  """Returns 1 if the answer is an accepted one, else 0."""
  normal = normalise(answer)
  return float(
    any(normal == normalise(text) for text in accepted_answers(reference))
  )


def f1(answer: str, reference: Reference) -> float:
  """Returns F1 of the common words with the best accepted answer, or 0."""
  words = normalise(answer).split()
  return max(
    (
      _word_f1(words, normalise(text).split())
      for text in accepted_answers(reference)
    ),
    default=0.0,
  )


def _word_f1(words: list[str], reference_words: list[str]) -> float:
  if not words or not reference_words:
    # Two empty texts are the same; an empty one shares no word with others.
    return float(words == reference_words)
  common = collections.Counter(words) & collections.Counter(reference_words)
  return 2 * common.total() / (len(words) + len(reference_words))
