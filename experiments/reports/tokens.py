"""The tokens of an answer: their sources, blocks and probabilities.

Without JavaScript the details of a token are its tooltip. `tokens.js` shows the
same details at the pointer or the cursor.
"""

import itertools

from experiments import escapes, records
from experiments.analysis.example_selection import SelectedAnswer
from experiments.records import Record, Trace, View
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
# Index of accepted drafts in the sources of a trace.
_DRAFT = records.SOURCES.index('draft')


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
  text = ''.join(_VISIBLE.get(c) or escapes.for_html(c) for c in text)
  title = escapes.for_html('\n'.join(details))
  return f'<span class="{css_class}" title="{title}"{probs}>{text}</span>'


def blocks(record: Record, trace: Trace) -> list[range]:
  """Returns the positions of each block's tokens.

  A block holds its accepted drafts and the token after them.
  """
  count = len(trace.tokens)
  ends = [i + 1 for i in range(count) if trace.sources[i] != _DRAFT]
  if not record.gamma:
    ends = range(1, count + 1)
  # An answer may end inside a block.
  edges = list(dict.fromkeys((0, *ends, count)))
  return [range(*edge) for edge in itertools.pairwise(edges)]


def answer(
  selected: SelectedAnswer, name: str, parting: int | None = None
) -> str:
  """Returns an answer as HTML."""
  record, parts = selected.record, []
  for block in blocks(record, selected.trace):
    inner = ''.join(_token(selected, i, i == parting) for i in block)
    parts.append(f'<span class="block">{inner}</span>')
  css_class = '' if record.gamma else ' no-blocks'
  return (
    f'<div class="text tokens{css_class}"'
    f' data-name="{escapes.for_html(name)}">{"".join(parts)}</div>'
  )


def legend(has_verifier: bool) -> str:
  """Returns the legend of colours and lines as HTML."""
  kinds_of_tokens = [(source, *texts) for source, texts in SOURCES.items()]
  kinds_of_tokens += [_VERIFIER_ALONE] if has_verifier else []
  kinds_of_tokens.append(_PARTING)
  entries = ''.join(
    f'<span title="{escapes.for_html(meaning)}">'
    f'<span class="t {source}">{escapes.for_html(name)}</span></span>'
    for source, name, meaning in kinds_of_tokens
  )
  return (
    f'<p class="sources">{entries}'
    '<span><span class="block"></span><span class="block">'
    'a bar begins a block</span></span></p>'
  )
