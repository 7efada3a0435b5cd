"""Drawings of the concept pages, as SVG with the colours of the theme.

The bars and curves are computed by the methods that they explain. Colours are
classes of `site.css`, so that a drawing is legible in light and dark.
"""

import functools
import html
from collections.abc import Callable, Iterable

import jax
import numpy as np

import cascades

_WIDTH = 420
_TOKENS = ('the', 'a', 'one', 'this', 'no')
_Q = np.array([0.40, 0.30, 0.05, 0.05, 0.20], np.float32)
_P = np.array([0.50, 0.20, 0.20, 0.09, 0.01], np.float32)


def _text(x: float, y: float, label: str, kind: str = '') -> str:
  """Returns a label; `kind` is a class, such as 'middle' or 'end'."""
  return f'<text x="{x:g}" y="{y:g}" class="{kind}">{html.escape(label)}</text>'


def _box(x: float, y: float, size: tuple[float, float], kind: str) -> str:
  width, height = size
  return (
    f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{max(height, 0):g}"'
    f' class="{kind}"/>'
  )


def _line(points: Iterable[tuple[float, float]], kind: str) -> str:
  path = ' '.join(f'{x:.1f},{y:.1f}' for x, y in points)
  return f'<polyline points="{path}" class="{kind}"/>'


def _svg(height: float, title: str, parts: list[str]) -> str:
  return (
    f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img"'
    f' xmlns="http://www.w3.org/2000/svg"><title>{html.escape(title)}</title>'
    f'{"".join(parts)}</svg>'
  )


def _distributions() -> cascades.Distributions:
  return cascades.Distributions(q=_Q, p=_P, q_gate=_Q, p_gate=_P)


def _law(method: str, lenience: float) -> np.ndarray:
  return np.asarray(cascades.METHODS[method].law(_distributions(), lenience))


def target() -> str:
  """Draws q, p and the target of one rule over five tokens."""
  rows = {'q': _Q, 'p': _P, 'pi': _law('token_v3', 0.7)}
  names = {'q': 'q, drafter', 'p': 'p, verifier', 'pi': 'target'}
  parts, base, scale, step = [], 165, 260, 80
  for i, token in enumerate(_TOKENS):
    left = 20 + i * step
    for j, (kind, probs) in enumerate(rows.items()):
      height = float(probs[i]) * scale
      parts.append(_box(left + 18 * j, base - height, (15, height), kind))
    parts.append(_text(left + 26, base + 18, token, 'middle'))
  parts.append(_line([(10, base), (_WIDTH - 10, base)], 'axis'))
  for j, (kind, name) in enumerate(names.items()):
    parts.append(_box(180, 8 + 20 * j, (12, 12), kind))
    parts.append(_text(198, 18 + 20 * j, name))
  return _svg(190, 'The target of TokenV3 over five tokens', parts)


def rule() -> str:
  """Draws which tokens four rules leave to the drafter."""
  rows = (('chow', 0.7), ('opt', 0.2), ('token_v2', 0.35), ('token_v3', 0.7))
  parts, top, step, left = [], 30, 30, 150
  for i, token in enumerate(_TOKENS):
    parts.append(_text(left + i * 54, 18, token, 'middle'))
  for j, (name, lenience) in enumerate(rows):
    y = top + j * step
    parts.append(_text(8, y + 15, f'{name}, {lenience:g}'))
    deferred = np.broadcast_to(
      np.asarray(cascades.METHODS[name].rule(_distributions(), lenience)),
      _Q.shape,
    )
    for i, is_deferred in enumerate(deferred):
      kind = 'p' if is_deferred else 'q'
      parts.append(_box(left - 20 + i * 54, y, (40, 20), kind))
  y = top + len(rows) * step + 14
  for x, kind, label in (
    (60, 'q', 'the drafter decides'),
    (230, 'p', 'deferred to the verifier'),
  ):
    parts.append(_box(x, y - 10, (12, 12), kind))
    parts.append(_text(x + 18, y, label))
  return _svg(y + 8, 'Tokens that rules defer', parts)


def _positions(count: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns q and p of random positions, where the models mostly agree."""
  rng = np.random.default_rng(0)
  shared, own = (
    rng.dirichlet(np.full(tokens, 0.4), (2, count)) for _ in range(2)
  )
  q = 0.7 * shared[0] + 0.3 * own[0]
  p = 0.7 * shared[0] + 0.3 * own[1]
  return q.astype(np.float32), p.astype(np.float32)


def lenience() -> str:
  """Draws accepted drafts and distance to p against the lenience."""
  parts, base, height, left, width = [], 170, 140, 40, 350
  q, p = _positions(200, 8)
  d = cascades.Distributions(q=q, p=p, q_gate=q, p_gate=p)
  law = jax.jit(jax.vmap(cascades.METHODS['diff'].law, (0, None)))
  grid = np.linspace(-1, 1, 81)
  laws = [np.asarray(law(d, x)) for x in grid]
  curves = {
    'pi': [1 - np.maximum(0, q - pi).sum(-1).mean() for pi in laws],
    'p': [np.maximum(0, pi - p).sum(-1).mean() for pi in laws],
  }
  for kind, values in curves.items():
    points = [
      (left + (x + 1) / 2 * width, base - float(y) * height)
      for x, y in zip(grid, values, strict=True)
    ]
    parts.append(_line(points, f'{kind} curve'))
  parts.append(_line([(left, 20), (left, base), (left + width, base)], 'axis'))
  for y in (0, 0.5, 1):
    parts.append(_text(left - 6, base - y * height + 4, f'{y:g}', 'end'))
  parts.append(_text(left, base + 18, '-1: strict'))
  parts.append(_text(left + width, base + 18, '1: drafter-only', 'end'))
  parts.append(_text(left + width / 2, base + 18, 'lenience', 'middle'))
  parts.append(_text(left + 10, 18, 'share of drafts accepted', 'pi-text'))
  parts.append(_text(left + 10, 140, 'TV(target, p)', 'p-text'))
  return _svg(195, 'Acceptance and distance against lenience', parts)


def block() -> str:
  """Draws one block of four drafts, of which two are accepted."""
  parts, size, step, left = [], (76, 26), 83, 84
  rows = (
    (2, 'drafts', ('four', 'thousand', 'two', 'hundred'), 'qqqq'),
    (60, 'verifier', ('four', 'thousand', 'three', ''), 'qqp-'),
    (118, 'emitted', ('four', 'thousand', 'three', ''), 'qqp-'),
  )
  notes = (
    (40, 'the drafter writes gamma = 4 tokens'),
    (98, 'one call reads all four, and rejects one'),
    (156, 'two drafts and the residual: 3 tokens'),
  )
  for y, name, tokens, kinds in rows:
    parts.append(_text(4, y + 17, name))
    for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
      style = {'q': 'q-box', 'p': 'p-box', '-': 'empty-box'}[kind]
      parts.append(_box(left + i * step, y, size, style))
      parts.append(_text(left + i * step + 38, y + 17, token, 'middle'))
  parts += [_text(left, y + 4, note, 'note') for y, note in notes]
  return _svg(170, 'A block of four drafted tokens', parts)


def verification() -> str:
  """Draws q split into accepted and rejected mass, and the residual."""
  pi = _law('token_v3', 0.7)
  accepted = np.minimum(_Q, pi)
  parts, base, scale, step = [], 165, 260, 80
  for i, token in enumerate(_TOKENS):
    left = 28 + i * step
    kept, drafted, total = (float(x[i]) * scale for x in (accepted, _Q, pi))
    parts.append(_box(left, base - kept, (22, kept), 'q'))
    parts.append(_box(left, base - drafted, (22, drafted - kept), 'rejected'))
    parts.append(_box(left + 28, base - kept, (22, kept), 'q'))
    parts.append(_box(left + 28, base - total, (22, total - kept), 'residual'))
    parts.append(_text(left + 25, base + 18, token, 'middle'))
  parts.append(_line([(10, base), (_WIDTH - 10, base)], 'axis'))
  legend = (
    ('q', 'accepted drafts'),
    ('rejected', 'rejected drafts'),
    ('residual', 'residual, drawn instead'),
  )
  for j, (kind, name) in enumerate(legend):
    parts.append(_box(200, 8 + 20 * j, (12, 12), kind))
    parts.append(_text(218, 18 + 20 * j, name))
  return _svg(190, 'Accepted, rejected and residual probability', parts)


def cost() -> str:
  """Draws the time of five tokens of the verifier and of one block."""
  token, unit, left = 58, 0.04, 92
  parts = [_text(4, 37, 'verifier')]
  for i in range(5):
    parts.append(_box(left + i * (token + 3), 20, (token, 26), 'p'))
  parts.append(_text(left, 64, '5 tokens: 5 calls, cost 5', 'note'))
  parts.append(_text(4, 105, 'block'))
  drafter = max(token * unit, 3)
  for i in range(4):
    parts.append(_box(left + i * (drafter + 2), 88, (drafter, 26), 'q'))
  parts.append(_box(left + 4 * (drafter + 2), 88, (1.3 * token, 26), 'p'))
  note = 'up to 5 tokens: 4 x 0.04 + 1.3 = cost 1.46'
  parts.append(_text(left, 132, note, 'note'))
  return _svg(144, 'Modelled cost of five tokens', parts)


DRAWINGS: dict[str, Callable[[], str]] = {
  name: functools.cache(draw)
  for name, draw in {
    'target': target,
    'rule': rule,
    'lenience': lenience,
    'block': block,
    'verification': verification,
    'cost': cost,
  }.items()
}
