"""All figures as a table in Markdown: a function for each phase."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from experiments import escapes
from experiments.benchmarks.harness import median

# Largest ratio of the loop's time to its floor's.
_FLOOR_BOUND = 1.1
# A gap between two logits of at most so many spacings of bfloat16 is a tie.
_TIE = 4
# Tokens of reading that are shown: a block of gamma 1, 2, 4, 8 and 16.
_WIDTHS = 2, 3, 5, 9, 17

# Figures by phase and name, and sentences by phase and name.
Figures = dict[str, dict[str, dict[str, Any]]]
Errors = dict[tuple[str, str], str]
# What was measured, the result, and whether it meets its bound, if it has one.
Rows = Iterator[tuple[str, str, bool | None]]


def markdown(
  figures: Figures, errors: Errors, left_out: Mapping[str, list[str]]
) -> str:
  """Returns the table, and lines on what did not fit."""
  table = ['| phase | measured | result | met |', '|---|---|---|---|']
  for phase, rows in _ROWS.items():
    texts = [
      (x, y, {True: 'yes', False: 'NO', None: ''}[z])
      for x, y, z in rows(figures)
    ]
    for (failed, name), error in errors.items():
      if failed == phase:
        texts.append((name or 'the phase', error, 'failed'))
    for row in texts:
      table.append(
        f'| {" | ".join(map(escapes.for_markdown, (phase, *row)))} |'
      )
  for phase, names in left_out.items():
    table.append(
      f'\n{phase}: {len(names)} did not fit into the minutes; the same command'
      f' measures them: {"; ".join(names)}.'
    )
  return '\n'.join(table)


def _layers(facts: Mapping[str, int]) -> str:
  """Returns the layers of a model, and those of its shape if they differ."""
  layers, of_layers = facts['layers'], facts['of_layers']
  return f'{layers}' if layers == of_layers else f'{layers} of {of_layers}'


def _pair(x: Mapping[str, Any]) -> str:
  """Returns a pair with its layers."""
  layers = [_layers(x['layers'][side]) for side in ('verifier', 'drafter')]
  return f'{x["pair"]} ({" and ".join(layers)} layers)'


def _device(figures: Figures) -> Rows:
  """Yields facts of the device; GB/s count what is read and what is written."""
  phase = figures['device']
  for name, value in phase.get('facts', {}).items():
    if name == 'versions':
      value = ', '.join(f'{k} {v}' for k, v in value.items())
    if value and name.endswith('_bytes'):
      yield name.removesuffix('_bytes'), f'{value / 1e9:.1f} GB', None
    elif value:
      yield name.replace('_', ' '), str(value), None
  if 'copy' in phase:
    yield 'copying', f'{phase["copy"]["bytes_per_s"] / 1e9:.0f} GB/s', None
  if 'launch' in phase:
    yield 'program launch', f'{1e6 * phase["launch"]["call_s"]:.0f} us', None


def _correctness(figures: Figures) -> Rows:
  """Yields each comparison.

  In bfloat16 nearly equal logits may be ordered differently: the gap is the
  difference of the verifier's two largest logits where an answer differs first.
  """
  for name, x in figures['correctness'].items():
    if 'z' in x:
      result = f'largest z {x["z"]:.1f} of {x["samples"]} samples'
      yield name, result, x['agrees']
      continue
    differing = x['divergences']
    equal = f'{x["prompts"] - len(differing)} of {x["prompts"]} agree'
    parts, ties = [f'{equal}, {x["tokens"]} tokens'], 0
    for divergence in differing:
      gap = 'the lengths differ'
      if divergence['gap'] is not None:
        spacings = divergence['gap'] / divergence['spacing']
        ties += spacings <= _TIE
        gap = f'gap {divergence["gap"]:.3g}, {spacings:.1f} spacings'
      parts.append(f'token {divergence["position"]}: {gap}')
    # With rounded numbers, each difference must be a near tie.
    allowed = 0 if x['must_agree'] else ties
    yield name, '; '.join(parts), len(differing) <= allowed


def _unit_costs(figures: Figures) -> Rows:
  """Yields a row for each shape and batch size; a draft is a pass, a draw."""
  passes: dict[tuple[str, int], dict[int, Any]] = {}
  for x in figures['unit_costs'].values():
    # 0 is a drafter's step.
    by_width = passes.setdefault((x['shape'], x['batch']), {})
    by_width[x.get('width', 0)] = x
  copying = figures['device'].get('copy', {}).get('bytes_per_s')
  for (shape, batch), by_width in passes.items():
    ms = {w: 1e3 * median(x['pass_s']) for w, x in by_width.items()}
    parts = []
    if 1 in ms:
      speed = by_width[1]['bytes'] / ms[1] * 1e3
      parts.append(f'reading one token {ms[1]:.3f} ms, {speed / 1e9:.0f} GB/s')
      parts[0] += f', {speed / copying:.2f} x copying' if copying else ''
      parts += [f'{w}: {ms[w] / ms[1]:.2f} x' for w in _WIDTHS if w in ms]
    if 0 in ms:
      step = f', {ms[0] / ms[1]:.2f} x' if 1 in ms else ''
      parts.append(f'draft step {ms[0]:.3f} ms{step}')
    layers = _layers(next(iter(by_width.values())))
    yield f'{shape} ({layers} layers), batch {batch}', '; '.join(parts), None


def _floor(figures: Figures) -> Rows:
  """Yields loops and the forward passes of as many blocks, their floors."""
  for x in figures['floor'].values():
    # Each entrant is followed by its floor.
    for row, floor in zip(x['rows'][::2], x['rows'][1::2], strict=True):
      ratio = median(row['decode_s']) / median(floor['decode_s'])
      ms = 1e3 * median(row['decode_s']) / row['blocks']
      name = f'{_pair(x)}, batch {x["batch"]}, {row["arm"]}'
      text = f'{ms:.3f} ms/block, {ratio:.2f} x its floor'
      yield name, text, ratio <= _FLOOR_BOUND


def _speed(figures: Figures) -> Rows:
  """Yields a row for each method and forced acceptance rate."""
  for x in figures['speed'].values():
    name = f'{_pair(x)}, batch {x["batch"]}'
    yield from _compared_with_first(name, x['rows'])


def _real_pair(figures: Figures) -> Rows:
  """Yields a row for each entrant."""
  for name, x in figures['real_pair'].items():
    yield from _compared_with_first(f'{name}, {x["dtype"]}', x['rows'])


def _compared_with_first(name: str, rows: list[dict[str, Any]]) -> Rows:
  """Yields entrants and their speed by that of the first."""
  speeds = [row['tokens'] / median(row['decode_s']) for row in rows]
  for row, speed in zip(rows, speeds, strict=True):
    text = f'{speed:.0f} tokens/s, {speed / speeds[0]:.2f} x alone'
    for field in ('rate', 'acceptance'):
      if row.get(field) is not None:
        text += f', {field} {row[field]:.2f}'
    if row.get('same_tokens') is False:
      text += ', other tokens'
    yield f'{name}, {row["arm"]}', text, None


def _curve(figures: Figures) -> Rows:
  """Yields a block at all leniences by a block at the lowest acceptance."""
  for x in figures['curve'].values():
    point, curve = (
      median(row['decode_s']) / row['blocks'] for row in x['rows']
    )
    text = f'{1e3 * curve:.3f} ms/block, {curve / point:.2f} x one lenience'
    yield f'{_pair(x)}, {x["leniences"]} leniences', text, None


def _compilation(figures: Figures) -> Rows:
  """Yields compile times without a cache, and the process's peak so far."""
  for x in figures['compilation'].values():
    parts = [
      f'{arm} {seconds:.1f} s' for arm, seconds in x['compile_s'].items()
    ]
    for field in ('peak', 'weight'):
      parts.append(f'{field} {x[f"{field}_bytes"] / 1e9:.2f} GB')
    yield f'{_pair(x)}, batch {x["batch"]}', ', '.join(parts), None


_ROWS: Mapping[str, Callable[[Figures], Rows]] = {
  'device': _device,
  'correctness': _correctness,
  'unit_costs': _unit_costs,
  'floor': _floor,
  'speed': _speed,
  'curve': _curve,
  'compilation': _compilation,
  'real_pair': _real_pair,
}
