"""Example answers: one prompt decoded by two methods, token by token.

The module `analysis.example_selection` selects the answers.
"""

import itertools
import math
from collections.abc import Sequence

from experiments import escapes
from experiments.analysis.example_selection import (
  SelectedAnswer,
  with_counterparts,
)
from experiments.reports import drawings, styles, tokens


def _verdict(quality: float) -> str:
  """Returns the quality of an answer in words; empty if it is unknown."""
  if math.isnan(quality):
    return ''
  # The best score of a task is 1 or 100.
  if quality in (1, 100):
    return '<span class="right">✓ right</span>'
  if quality == 0:
    return '<span class="wrong">✗ wrong</span>'
  return f'<span>quality {styles.quality(quality)}</span>'


def parting(answers: Sequence[SelectedAnswer]) -> int | None:
  """Returns the index of the first token in which answers differ, if any."""
  texts = itertools.zip_longest(*(a.trace.tokens for a in answers))
  return next((i for i, t in enumerate(texts) if len(set(t)) > 1), None)


def _lane(
  answer: SelectedAnswer,
  curve_styles: styles.CurveStyles,
  show_gamma: bool,
  index: int | None,
) -> str:
  """Returns one of the answers to a prompt as HTML."""
  record = answer.record
  style = curve_styles[record.variant]
  name = style.label
  if record.gamma:
    per_call = record.emitted / max(1, record.verifier_calls)
    gamma = record.gamma if show_gamma else 0
    name = f'{name}, {styles.point_label(record.lenience, gamma)}'
    counts = (
      f'{record.emitted} tokens in {record.verifier_calls} verifier calls'
      f' ({styles.number(per_call, 1)} tokens per call)'
    )
  else:
    counts = f'{record.emitted} tokens, one verifier call per token'
  return f"""<div class="lane">
<header>{_verdict(record.quality)}
<span>{drawings.marker(style)} {escapes.for_html(name)}</span>
<span>{counts}</span></header>
{tokens.answer(answer, name, index)}
</div>"""


def _example(
  answer: SelectedAnswer, curve_styles: styles.CurveStyles, show_gamma: bool
) -> str:
  """Returns a prompt with its reference and its answers as HTML."""
  record = answer.record
  # The ids of some tasks begin with the name of the task.
  has_task = record.id.startswith(record.task)
  name = record.id if has_task else f'{record.task} {record.id}'
  reference = answer.example.reference
  if not isinstance(reference, str):
    reference = '\n'.join(reference)
  answers = with_counterparts([answer])
  index = parting(answers)
  lanes = '\n'.join(_lane(a, curve_styles, show_gamma, index) for a in answers)
  prompt = escapes.for_html(str(answer.example.prompt))
  return f"""<article class="example">
<header><span>{escapes.for_html(name)}</span></header>
<dl><dt>Prompt</dt><dd class="text">{prompt}</dd>
<dt>Reference</dt><dd class="text">{escapes.for_html(reference)}</dd></dl>
<div class="lanes">
{lanes}
</div>
</article>"""


def section(
  answers: Sequence[SelectedAnswer],
  curve_styles: styles.CurveStyles,
  show_gamma: bool,
) -> str:
  """Returns the section of example answers as HTML; empty without answers."""
  if not answers:
    return ''
  has_verifier = any(not a.record.gamma for a in with_counterparts(answers))
  articles = '\n'.join(_example(a, curve_styles, show_gamma) for a in answers)
  return f"""<section>
<h2>Example answers, token by token</h2>
<p class="guide">Long runs of accepted drafts save time. At each residual token
the method rejected a draft. The answers are to the first examples of each task
and were not picked by their quality; the lenience is a middle one. Point at a
token, or use the arrow keys, to see its probability under the drafter (q), the
verifier (p) and the target of the method (π). A frame marks the first token in
which the two answers to a prompt differ.</p>
{tokens.legend(has_verifier)}
{articles}
</section>"""
