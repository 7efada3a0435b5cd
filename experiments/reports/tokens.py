"""The tokens of an answer: their sources, blocks, times and probabilities.

Without JavaScript the details of a token are its tooltip, and the bars of the
clock are visible. `tokens.js` shows the same details at the pointer or the
cursor, and plays the blocks in modelled time.
"""

from collections.abc import Sequence

from cascades.untrusted import display
from experiments import records
from experiments.analysis import blocks
from experiments.analysis.example_selection import SelectedAnswer
from experiments.records import Trace, View
from experiments.reports import styles

# Label and meaning of the tokens of each source.
SOURCES = {
  'draft': ('accepted draft', 'drafted, and accepted by the method'),
  'residual': ('residual', 'sampled after a draft was rejected'),
  'bonus': ('bonus', 'sampled after all drafts of a block were accepted'),
}
# CSS class, label and meaning of the tokens of the verifier alone.
_VERIFIER_ALONE = ('alone', 'verifier alone', 'one verifier call per token')
_PARTING = ('parts', 'first difference', 'of the two answers')
# Symbols of invisible characters.
_VISIBLE = {'\n': '↵\n', '\t': '⇥\t', '\r': '␍'}
# Width of a clock in units of its SVG.
_UNITS = 1000

CONTROLS = """<div class="controls" role="group" aria-label="Playback" hidden>
<button type="button" class="play">Play</button>
<button type="button" class="restart">Restart</button>
<label>Speed
<input type="range" min="-3" max="3" step="0.5" value="0" /></label>
<output></output></div>"""


def _probability(p: float) -> str:
  """Formats a probability; those below 0.001 with a power of ten."""
  if p >= 0.001 or p == 0:
    return styles.number(p, 3)
  return f'{p:.0e}'.replace('e-0', 'e-').replace('-', styles.MINUS)


def _quoted(text: str) -> str:
  """Quotes a text, so that spaces show; a new line would break the tooltip."""
  return f'“{text.replace(chr(10), "↵")}”'


def _view_lines(trace: Trace, view: View, index: int, source: str) -> list[str]:
  """Returns the details of a token: probabilities, rule, likeliest tokens."""
  columns = {'q': view.q, 'p': view.p, 'π': view.pi}
  probs = [f'{name} {_probability(x[index])}' for name, x in columns.items()]
  details, token = [' · '.join(probs)], 'this token'
  if source == 'residual':
    # The page has no probabilities of the rejected draft.
    token = 'the replacement'
    if (draft := view.rejected[index]) is not None:
      details.append(f'rejected draft: {_quoted(draft)}')
    details.append(f'q, p, π of {token}, not of the rejected draft')
  if view.deferred is not None:
    verdict = 'defers' if view.deferred[index] else 'keeps'
    details.append(f'the rule {verdict} {token}')
  if source == 'residual' and trace.deferred is not None:
    verdict = 'deferred' if trace.deferred[index] else 'kept'
    details.append(f'the rule {verdict} the draft rejected here')
  argmaxes = view.drafter_argmax[index], view.verifier_argmax[index]
  drafter, verifier = map(_quoted, argmaxes)
  if drafter == verifier:
    return [*details, f'likeliest: {drafter} for both models']
  return [*details, f'likeliest: drafter {drafter}, verifier {verifier}']


def _token(answer: SelectedAnswer, index: int, parts: bool) -> str:
  """Returns a token as HTML, with its details in the tooltip."""
  record, trace, view = answer.record, answer.trace, answer.view
  source = records.SOURCES[trace.sources[index]]
  name = SOURCES.get(source, (source, ''))[0]
  if not record.gamma:
    source, name, _ = _VERIFIER_ALONE
  details, probs = [f'{name}, token {trace.tokens[index]}'], ''
  css_class = f't {source} parts' if parts else f't {source}'
  if view is not None and index < len(view.q):
    details += _view_lines(trace, view, index, source)
    values = (view.q[index], view.p[index], view.pi[index])
    probs = f' data-probs="{" ".join(f"{x:.4g}" for x in values)}"'
  details += ['here the two answers differ first'] if parts else []
  # An end-of-sequence token has no text.
  last = index == len(trace.tokens) - 1
  text = trace.token_strings[index] or ('[end]' if last else '∅')
  # Invisible characters are made visible.
  text = ''.join(_VISIBLE.get(c) or display.for_html(c) for c in text)
  title = display.for_html('\n'.join(details))
  return f'<span class="{css_class}" title="{title}"{probs}>{text}</span>'


def _clock_bars(timed_blocks: Sequence[blocks.Block], end: float) -> str:
  """Returns the bars of a clock: low for the drafter, high for the verifier."""
  low, high = [], []
  scale = _UNITS / end if end else 0.0
  for block in timed_blocks:
    start, split, stop = (
      seconds * scale for seconds in (block.start, block.drafts_end, block.end)
    )
    # A gap after each block, shorter for short blocks.
    gap = min(2.0, (stop - start) / 4)
    low.append(f'M{start:.1f} 6h{split - start:.1f}v4H{start:.1f}z')
    if block.verifying:
      width = max(0.0, stop - split - gap)
      high.append(f'M{split:.1f} 0h{width:.1f}v10H{split:.1f}z')
  return (
    '<div class="track" aria-hidden="true">'
    f'<svg viewBox="0 0 {_UNITS} 10" preserveAspectRatio="none">'
    f'<path class="drafting" d="{"".join(low)}"/>'
    f'<path class="verifying" d="{"".join(high)}"/></svg><i></i></div>'
  )


def answer(
  selected: SelectedAnswer,
  timeline: blocks.Timeline,
  name: str,
  end: float,
  parting: int | None = None,
) -> str:
  """Returns an answer with its clock as HTML."""
  record, parts = selected.record, []
  for block in timeline.blocks:
    inner = ''.join(_token(selected, i, i == parting) for i in block.tokens)
    parts.append(
      f'<span class="block" data-from="{block.start:.6g}"'
      f' data-to="{block.end:.6g}">{inner}</span>'
    )
  css_class = '' if record.gamma else ' no-blocks'
  block_html = ''.join(parts)
  return f"""{_clock_bars(timeline.blocks, end)}
<p class="clock"><b role="timer">{styles.milliseconds(timeline.end)}</b>
modelled; per token {styles.number(timeline.pace)} of the verifier alone</p>
<div class="text tokens{css_class}" data-name="{display.for_html(name)}"
data-step="{timeline.step:.6g}" data-to="{timeline.end:.6g}"
>{block_html}</div>"""


def legend(has_verifier: bool) -> str:
  """Returns the legend of colours, lines and bars as HTML."""
  kinds_of_tokens = [(source, *texts) for source, texts in SOURCES.items()]
  kinds_of_tokens += [_VERIFIER_ALONE] if has_verifier else []
  kinds_of_tokens.append(_PARTING)
  entries = ''.join(
    f'<span title="{display.for_html(meaning)}">'
    f'<span class="t {source}">{display.for_html(name)}</span></span>'
    for source, name, meaning in kinds_of_tokens
  )
  clock_keys = ''.join(
    f'<span><svg class="key" viewBox="0 0 20 10"><path class="{kind}"'
    f' d="M0 {top}h20v{10 - top}H0z"/></svg> {text}</span>'
    for kind, top, text in (
      ('drafting', 6, 'drafter runs'),
      ('verifying', 0, 'verifier runs'),
    )
  )
  return (
    f'<p class="sources">{entries}'
    '<span><span class="block"></span><span class="block">'
    f'a bar begins a block</span></span>{clock_keys}</p>'
  )
