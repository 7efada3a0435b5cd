"""An answer's tokens: who wrote them, in which block, when, and how likely.

Without a script a token says what is known of it in its title, and the clock's
bars are there; `tokens.js` shows the same beside the pointer or the cursor, and
plays the blocks in modelled time.
"""

from collections.abc import Sequence

from cascades.untrusted import display
from experiments import records
from experiments.analysis import blocks
from experiments.analysis.example_selection import SelectedAnswer
from experiments.records import Record, Trace, View
from experiments.reports import styles

# By source: what the legend calls its tokens, and what it means.
SOURCES = {
  'draft': ('drafted and kept', 'the drafter wrote it, verification kept it'),
  'residual': ("verifier's residual", 'sampled after a draft was turned down'),
  'bonus': ('bonus', 'sampled after a whole block was kept'),
}
# Without drafts there are no blocks to be a bonus of.
_ALONE = ('alone', 'verifier alone', 'one call of the verifier for each')
# What is shown for characters that cannot be seen.
_VISIBLE = {'\n': '↵\n', '\t': '⇥\t', '\r': '␍'}
# Widths of a clock's bars add up to this.
_UNITS = 1000

CONTROLS = """<div class="controls" role="group" aria-label="Playback" hidden>
<button type="button" class="play">Play</button>
<button type="button" class="restart">Restart</button>
<label>Speed
<input type="range" min="-3" max="3" step="0.5" value="0" /></label>
<output></output></div>"""


def _visible(text: str) -> str:
  """A text, escaped, of which nothing is unseen."""
  return ''.join(_VISIBLE.get(c) or display.for_html(c) for c in text)


def _chance(p: float) -> str:
  """A probability for people."""
  if p >= 0.001 or p == 0:
    return styles.number(p, 3)
  return f'{p:.0e}'.replace('e-0', 'e-').replace('-', styles.MINUS)


def _said(trace: Trace, view: View, index: int, source: str) -> list[str]:
  """What models and rule said of a token, in lines."""
  of = {'q': view.q, 'p': view.p, 'π': view.pi}
  chances = [f'{name} {_chance(values[index])}' for name, values in of.items()]
  lines = [' · '.join(chances)]
  if view.deferred is not None:
    verdict = 'defers' if view.deferred[index] else 'keeps'
    lines.append(f'the rule {verdict} this token')
  if source == 'residual' and trace.deferred is not None:
    verdict = 'deferred' if trace.deferred[index] else 'kept'
    lines.append(f'the rule {verdict} the draft turned down here')
  drafter, verifier = (
    # A space has to be seen, and a new line is none here.
    f'“{text.replace(chr(10), "↵")}”'
    for text in (view.drafter_argmax[index], view.verifier_argmax[index])
  )
  if drafter == verifier:
    return [*lines, f'both models would say {drafter}']
  return [*lines, f'likeliest: drafter {drafter}, verifier {verifier}']


def _token(record: Record, trace: Trace, view: View | None, index: int) -> str:
  """A token, with what is known of it."""
  source = records.SOURCES[trace.sources[index]]
  name = SOURCES.get(source, (source, ''))[0]
  if not record.gamma:
    source, name, _ = _ALONE
  lines, chances = [f'{name}, token {trace.tokens[index]}'], ''
  if view is not None and index < len(view.q):
    lines += _said(trace, view, index, source)
    values = (view.q[index], view.p[index], view.pi[index])
    chances = f' data-said="{" ".join(f"{x:.4g}" for x in values)}"'
  # The end of a sequence has no text of its own.
  last = index == len(trace.tokens) - 1
  text = _visible(trace.token_strings[index] or ('[end]' if last else '∅'))
  title = display.for_html('\n'.join(lines))
  return f'<span class="t {source}" title="{title}"{chances}>{text}</span>'


def _bars(found: Sequence[blocks.Block], end: float) -> str:
  """A clock's bars: low where the drafter works, high where the verifier."""
  low, high = [], []
  scale = _UNITS / end if end else 0.0
  for block in found:
    start, split, to = (
      seconds * scale for seconds in (block.start, block.drafts_end, block.end)
    )
    # A gap is left between blocks, which none is too short for.
    gap = min(2.0, (to - start) / 4)
    low.append(f'M{start:.1f} 6h{split - start:.1f}v4H{start:.1f}z')
    if block.verifying:
      width = max(0.0, to - split - gap)
      high.append(f'M{split:.1f} 0h{width:.1f}v10H{split:.1f}z')
  return (
    '<div class="track" aria-hidden="true">'
    f'<svg viewBox="0 0 {_UNITS} 10" preserveAspectRatio="none">'
    f'<path class="drafting" d="{"".join(low)}"/>'
    f'<path class="verifying" d="{"".join(high)}"/></svg><i></i></div>'
  )


def answer(
  shown: SelectedAnswer, time: blocks.Timeline, name: str, end: float
) -> str:
  """An answer with its clock.

  Args:
    shown: The answer.
    time: When its tokens were there.
    name: What people call the method that wrote it.
    end: Seconds at the right end of the clock.
  """
  record, parts = shown.record, []
  for block in time.blocks:
    inner = ''.join(
      _token(record, shown.trace, shown.view, i) for i in block.tokens
    )
    parts.append(
      f'<span class="block" data-from="{block.start:.6g}"'
      f' data-to="{block.end:.6g}">{inner}</span>'
    )
  alone = '' if record.gamma else ' no-blocks'
  return f"""{_bars(time.blocks, end)}
<p class="clock"><b role="timer">{styles.milliseconds(time.end)}</b> modelled,
{styles.number(time.pace)} times the verifier's per token</p>
<div class="text tokens{alone}" data-name="{display.for_html(name)}"
data-step="{time.step:.6g}" data-to="{time.end:.6g}">{''.join(parts)}</div>"""


def legend(alone: bool) -> str:
  """What colours, lines and bars mean.

  Args:
    alone: Whether an answer of the verifier alone is shown too.
  """
  known = [(source, *said) for source, said in SOURCES.items()]
  known += [_ALONE] if alone else []
  entries = ''.join(
    f'<span title="{display.for_html(meaning)}">'
    f'<span class="t {source}">{display.for_html(name)}</span></span>'
    for source, name, meaning in known
  )
  bars = ''.join(
    f'<span><svg class="key" viewBox="0 0 20 10"><path class="{kind}"'
    f' d="M0 {top}h20v{10 - top}H0z"/></svg> {text}</span>'
    for kind, top, text in (
      ('drafting', 6, 'the drafter at work'),
      ('verifying', 0, 'the verifier at work'),
    )
  )
  return (
    f'<p class="sources">{entries}'
    '<span><span class="block first"></span><span class="block">'
    f'a bar begins a block</span></span>{bars}</p>'
  )
