"""Example answers: the same prompt by two methods, token by token.

Which ones is not decided here: `analysis.shown` says so.
"""

import math
from collections.abc import Mapping, Sequence

from cascades.untrusted import display
from experiments.analysis import blocks
from experiments.analysis.example_selection import (
  SelectedAnswer,
  with_counterparts,
)
from experiments.records import metrics
from experiments.reports import drawings, styles, tokens


def _verdict(quality: float) -> str:
  """Whether an answer is right, or how good it is; empty if nobody knows."""
  if math.isnan(quality):
    return ''
  # Tasks score in [0, 1] or in [0, 100].
  if quality in (1, 100):
    return '<span class="right">✓ right</span>'
  if quality == 0:
    return '<span class="wrong">✗ wrong</span>'
  return f'<span>quality {styles.number(quality)}</span>'


def _lane(
  shown: SelectedAnswer,
  style: styles.Style,
  gamma: bool,
  costs: metrics.Costs,
  end: float,
) -> str:
  """One of the answers to a prompt.

  Args:
    shown: The answer.
    style: How its curve looks.
    gamma: Whether points differ in gamma, so that it is named.
    costs: Measured unit costs.
    end: Seconds at the right end of the clock.
  """
  record = shown.record
  name = style.label
  if record.gamma:
    per_call = record.emitted / max(1, record.verifier_calls)
    place = styles.place(record.lenience, record.gamma if gamma else 0)
    name = f'{name}, {place}'
    counts = (
      f'{record.emitted} tokens in {record.verifier_calls} verifier calls'
      f' ({styles.number(per_call, 1)} per call)'
    )
  else:
    counts = f'{record.emitted} tokens, a verifier call each'
  time = blocks.timeline(record, shown.trace, costs)
  return f"""<div class="lane">
<header>{_verdict(record.quality)}
<span>{drawings.marker(style)} {display.for_html(name)}</span>
<span>{counts}</span></header>
{tokens.answer(shown, time, name, end)}
</div>"""


def _example(
  shown: SelectedAnswer,
  table: Mapping[str, styles.Style],
  gamma: bool,
  costs: metrics.Costs,
) -> str:
  """A prompt with the answers to it; arguments are those of `section`."""
  record = shown.record
  # Some tasks name themselves in their ids.
  own = record.id.startswith(record.task)
  name = record.id if own else f'{record.task} {record.id}'
  reference = shown.example.reference
  if not isinstance(reference, str):
    reference = '\n'.join(reference)
  end = max(
    blocks.duration(s.record, costs) for s in with_counterparts([shown])
  )
  lanes = '\n'.join(
    _lane(s, table[s.record.variant], gamma, costs, end)
    for s in with_counterparts([shown])
  )
  prompt = display.for_html(shown.example.prompt)
  return f"""<article class="example">
<header><span>{display.for_html(name)}</span></header>
<dl><dt>Prompt</dt><dd class="text">{prompt}</dd>
<dt>Reference</dt><dd class="text">{display.for_html(reference)}</dd></dl>
{tokens.CONTROLS}
<div class="lanes">
{lanes}
</div>
</article>"""


def section(
  shown: Sequence[SelectedAnswer],
  table: Mapping[str, styles.Style],
  gamma: bool,
  costs: metrics.Costs,
) -> str:
  """Examples with their legend; empty if there are none.

  Args:
    shown: Answers, each with what stands beside it, as `find` gives them.
    table: Styles by variant.
    gamma: Whether points differ in gamma, so that it is named.
    costs: Measured unit costs.
  """
  if not shown:
    return ''
  alone = any(not s.record.gamma for s in with_counterparts(shown))
  articles = '\n'.join(_example(s, table, gamma, costs) for s in shown)
  return f"""<section>
<h2>Who wrote what</h2>
<p class="guide">Long runs of drafted tokens are where time is saved; each
residual token is a place where the verifier, or the rule that speaks for it,
disagreed. These are the first examples of each task, not picked. Rest the
pointer on a token, or go through an answer with the arrow keys, to see how
likely it was to drafter (q), verifier (p) and method (π). Both answers of a
prompt play in modelled time; a draft is outlined until the verifier has read
it.</p>
{tokens.legend(alone)}
{articles}
</section>"""
