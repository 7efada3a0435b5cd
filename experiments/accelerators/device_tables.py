"""Tables of the figures: a function for each phase, and a dictionary."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from experiments.benchmarks.harness import median

# Largest ratio of the loop's time to its floor's.
FLOOR_BOUND = 1.1
# A gap between two logits of at most so many spacings of bfloat16 is a tie.
TIE = 4
# Tokens of the columns of reading: a block of gamma 1, 2, 4, 8 and 16.
_WIDTHS = (2, 3, 5, 9, 17)

Figures = Mapping[str, Mapping[str, Mapping[str, Any]]]
Rows = Iterator[list[Any]]


def copy_speed(figures: Figures) -> float | None:
  """Returns the device's copying speed in bytes per second; None if unknown."""
  return figures.get('device', {}).get('copy', {}).get('bytes_per_s')


def _layers(facts: Mapping[str, int]) -> str:
  """Returns the layers of a model, and those of its shape if they differ."""
  layers, of_layers = facts['layers'], facts['of_layers']
  return f'{layers}' if layers == of_layers else f'{layers} of {of_layers}'


def _pair_layers(row: Mapping[str, Any]) -> str:
  """Returns the layers of the verifier and of the drafter."""
  return ' and '.join(
    _layers(row['layers'][x]) for x in ('verifier', 'drafter')
  )


def ratio_text(value: float | None) -> str:
  """Returns a ratio, or a dash for none."""
  return '-' if value is None else f'{value:.2f}'


def _device(figures: Figures) -> Rows:
  """Yields facts of the device."""
  phase = figures['device']
  yield ['fact', 'value']
  for name, value in phase.get('facts', {}).items():
    if name.endswith('_bytes') and value:
      yield [name.removesuffix('_bytes'), f'{value / 1e9:.1f} GB']
    elif value and name != 'versions':
      yield [name.replace('_', ' '), value]
  if speed := copy_speed(figures):
    yield ['copying', f'{speed / 1e9:.0f} GB/s']
  if 'launch' in phase:
    yield ['program launch', f'{1e6 * phase["launch"]["call_s"]:.0f} us']


def ties(figure: Mapping[str, Any]) -> int:
  """Returns the number of first divergences that are near ties."""
  return sum(
    x['gap'] is not None and x['gap'] <= TIE * x['spacing']
    for x in figure['divergences']
  )


def _correctness(figures: Figures) -> Rows:
  """Yields each comparison."""
  yield ['comparison', 'result', 'detail']
  for name, x in figures['correctness'].items():
    if 'z' in x:
      verdict = 'follows' if x['agrees'] else 'DIFFERS'
      yield [name, verdict, f'largest z {x["z"]:.1f} of {x["samples"]} samples']
      continue
    differing = x['divergences']
    equal = f'{x["prompts"] - len(differing)} of {x["prompts"]} agree'
    yield [name, equal, f'{x["tokens"]} tokens']
    for divergence in differing:
      gap = 'the lengths differ'
      if divergence['gap'] is not None:
        spacings = divergence['gap'] / divergence['spacing']
        gap = f'gap {divergence["gap"]:.3g}, {spacings:.1f} spacings'
      yield ['', f'differs at token {divergence["position"]}', gap]


def reading(figures: Figures) -> dict[tuple[str, int], dict[int, Any]]:
  """Returns figures of reading by shape and batch size, then by tokens."""
  passes: dict[tuple[str, int], dict[int, Any]] = {}
  for x in figures.get('unit_costs', {}).values():
    by_width = passes.setdefault((x['shape'], x['batch']), {})
    # 0 is a drafter's step.
    by_width[x.get('width', 0)] = x
  return passes


def _unit_costs(figures: Figures) -> Rows:
  """Yields a row for each shape and batch size."""
  passes, copying = reading(figures), copy_speed(figures)
  # Others are in the file of the phase.
  widths = sorted({w for x in passes.values() for w in x} & {*_WIDTHS})
  yield [
    *('model', 'layers', 'batch', 'reading 1, ms', 'GB/s', 'x copying'),
    *(f'{width} / 1' for width in widths),
    *('draft step, ms', 'step / reading 1'),
  ]
  for (shape, batch), by_width in passes.items():
    ms = {w: 1e3 * median(x['pass_s']) for w, x in by_width.items()}
    facts, speed = next(iter(by_width.values())), None
    if 1 in ms:
      speed = by_width[1]['bytes'] / ms[1] * 1e3
    relative = {w: ms[w] / ms[1] for w in ms if 1 in ms}
    yield [
      *(shape, _layers(facts), batch),
      f'{ms[1]:.3f}' if 1 in ms else '-',
      f'{speed / 1e9:.0f}' if speed else '-',
      ratio_text(speed / copying if speed and copying else None),
      *(ratio_text(relative.get(width)) for width in widths),
      f'{ms[0]:.3f}' if 0 in ms else '-',
      ratio_text(relative.get(0)),
    ]


def floor_ratios(figures: Figures) -> Iterator[tuple[Any, Any, float]]:
  """Yields each measurement, its entrant, and the ratio to its floor."""
  for x in figures.get('floor', {}).values():
    # Each entrant is followed by its floor.
    for row, floor in zip(x['rows'][::2], x['rows'][1::2], strict=True):
      yield x, row, median(row['decode_s']) / median(floor['decode_s'])


def _floor(figures: Figures) -> Rows:
  """Yields a row for each loop and its floor."""
  yield ['models', 'layers', 'batch', 'loop', 'ms/block', 'x floor', 'met']
  for x, row, ratio in floor_ratios(figures):
    yield [
      *(x['pair'], _pair_layers(x), x['batch'], row['arm']),
      f'{1e3 * median(row["decode_s"]) / row["blocks"]:.3f}',
      *(ratio_text(ratio), 'yes' if ratio <= FLOOR_BOUND else 'NO'),
    ]


def speeds(figures: Figures, phase: str) -> Iterator[tuple[Any, Any, float]]:
  """Yields each measurement, its entrant, and the speed by the verifier's."""
  for x in figures.get(phase, {}).values():
    first, *_ = (row['tokens'] / median(row['decode_s']) for row in x['rows'])
    for row in x['rows']:
      yield x, row, row['tokens'] / median(row['decode_s']) / first


def _speed(figures: Figures) -> Rows:
  """Yields a row for each method and rate."""
  head = 'forced', 'acceptance', 'tokens/s', 'x alone'
  yield ['models', 'layers', 'batch', 'method', *head]
  for x, row, ratio in speeds(figures, 'speed'):
    yield [
      *(x['pair'], _pair_layers(x), x['batch'], row['arm']),
      *(ratio_text(row.get('rate')), ratio_text(row.get('acceptance'))),
      f'{row["tokens"] / median(row["decode_s"]):.0f}',
      ratio_text(ratio),
    ]


def curve_ratio(figure: Mapping[str, Any]) -> float:
  """Returns the time of a block at all leniences by a block at one."""
  point, curve = (
    median(row['decode_s']) / row['blocks'] for row in figure['rows']
  )
  return curve / point


def _curve(figures: Figures) -> Rows:
  """Yields a row for each pair."""
  yield ['models', 'layers', 'leniences', 'ms/block', 'x one', 'speed-up']
  for x in figures['curve'].values():
    curve, ratio = x['rows'][1], curve_ratio(x)
    yield [
      *(x['pair'], _pair_layers(x), x['leniences']),
      f'{1e3 * median(curve["decode_s"]) / curve["blocks"]:.3f}',
      *(ratio_text(ratio), ratio_text(x['leniences'] / ratio)),
    ]


def _compilation(figures: Figures) -> Rows:
  """Yields a row for each pair."""
  yield [
    *('models', 'layers', 'batch', 'alone, s', 'strict, s', 'token_v2, s'),
    *('peak GB', 'weights GB'),
  ]
  for x in figures['compilation'].values():
    times = [x['compile_s'][arm] for arm in ('alone', 'strict', 'token_v2')]
    sizes = [x[f'{k}_bytes'] / 1e9 for k in ('peak', 'weight')]
    yield [
      *(x['pair'], _pair_layers(x), x['batch'], *(f'{s:.1f}' for s in times)),
      *(f'{size:.2f}' for size in sizes),
    ]


def _real_pair(figures: Figures) -> Rows:
  """Yields a row for each entrant."""
  head = 'acceptance', 'tokens/s', 'x alone', 'same tokens'
  yield ['models', 'dtype', 'entrant', *head]
  names = {id(x): name for name, x in figures['real_pair'].items()}
  for x, row, ratio in speeds(figures, 'real_pair'):
    yield [
      *(
        names[id(x)],
        x['dtype'],
        row['arm'],
        ratio_text(row.get('acceptance')),
      ),
      f'{row["tokens"] / median(row["decode_s"]):.0f}',
      *(ratio_text(ratio), 'yes' if row.get('same_tokens') else 'no'),
    ]


TABLES: Mapping[str, Callable[[Figures], Rows]] = {
  'device': _device,
  'correctness': _correctness,
  'unit_costs': _unit_costs,
  'floor': _floor,
  'speed': _speed,
  'curve': _curve,
  'compilation': _compilation,
  'real_pair': _real_pair,
}
