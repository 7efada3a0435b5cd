"""Figures of all phases as tables, sentences and verdicts.

The terminal, the table in Markdown and the page show the same content.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from cascades.untrusted import display
from experiments.accelerators import device_tables
from experiments.accelerators.device_phases import PHASES
from experiments.accelerators.phase_results import PhaseResult
from experiments.benchmarks.harness import Table, format_table, median

# Errors of figures that another program has written.
_WRONG_FORM = (
  ArithmeticError,
  AttributeError,
  LookupError,
  TypeError,
  ValueError,
)
_GUIDES = {
  'device': 'GB/s count bytes that are read and bytes that are written.',
  'correctness': (
    'Greedy strict decoding must write the tokens of the verifier alone in'
    ' float32. In bfloat16 nearly equal logits may be ordered differently: the'
    " gap is the difference of the verifier's two largest logits where an"
    ' answer differs first, in spacings of bfloat16 at their size. Sampled'
    ' laws are compared with enumerated ones at temperature 1; z is the'
    ' largest deviation in standard errors, and 5 or more fails.'
  ),
  'unit_costs': (
    'Forward passes of models with random weights: milliseconds to read one'
    ' token in each row; the speed of reading weights and caches, as a share of'
    " the device's copying speed; and the time to read more tokens, compared"
    " with one token. A drafter's step is a pass and a draw."
  ),
  'floor': (
    'The floor is the time of the forward passes of as many blocks, without'
    ' verification. The loop should take at most'
    f' {device_tables.FLOOR_BOUND:g} times as long.'
  ),
  'speed': (
    'Both methods accept drafts with a forced probability, since random weights'
    ' never agree; tokens per second are compared with the verifier alone.'
  ),
  'curve': (
    'A prompt at several leniences in one batch, compared with the prompt at'
    ' the lowest acceptance rate.'
  ),
  'compilation': (
    'Seconds to compile prefill and loop, without a cache; and the peak of'
    ' memory since the floor phase.'
  ),
  'real_pair': (
    'Greedy decoding with trained weights. The verifier alone, strict decoding'
    ' and token_v2 take turns.'
  ),
}


class Verdict(NamedTuple):
  """A headline.

  Attributes:
    heading: The subject.
    value: The result in a few words.
    detail: The result's conditions.
    is_met: False if the result misses its bound; None if it has none.
  """

  heading: str
  value: str
  detail: str
  is_met: bool | None = None


@dataclasses.dataclass(frozen=True)
class Section:
  """A phase as text.

  Attributes:
    phase: Name of the phase.
    title: Title of the section.
    guide: Text on how to read the table.
    table: The table; empty if there are no figures.
    sentences: Errors, and measurements that were left out.
  """

  phase: str
  title: str
  guide: str
  table: Table
  sentences: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Summary:
  """The content of the page and of the table.

  Attributes:
    title: The device.
    lead: A line on the setting.
    verdicts: Headlines.
    sections: A section for each phase that has a file.
    missing: Titles of the phases without a file.
    figures: Figures by phase and measurement, for drawings.
  """

  title: str
  lead: str
  verdicts: tuple[Verdict, ...]
  sections: tuple[Section, ...]
  missing: tuple[str, ...]
  figures: Mapping[str, Mapping[str, Mapping[str, Any]]]

  def text(self) -> str:
    """Returns the summary for a terminal."""
    parts = [f'{self.title}\n{self.lead}']
    rows = [
      (x.heading, x.value, {True: 'yes', False: 'NO', None: ''}[x.is_met])
      for x in self.verdicts
    ]
    parts += [format_table([('result', 'value', 'met'), *rows])] if rows else []
    for section in self.sections:
      text_rows = [section.title]
      text_rows += [format_table(section.table)] if section.table else []
      parts.append('\n'.join([*text_rows, *section.sentences]))
    if self.missing:
      parts.append(f'Not started: {", ".join(self.missing)}.')
    return display.printable('\n\n'.join(parts))

  def markdown(self) -> str:
    """Returns the summary as Markdown."""

    def line(cells) -> str:
      return f'| {" | ".join(map(display.for_markdown, cells))} |'

    parts = [f'# {display.for_markdown(self.title)}', self.lead]
    for x in self.verdicts:
      met = {True: ' (met)', False: ' (**not met**)', None: ''}[x.is_met]
      text = f'{x.heading}: {x.value}, {x.detail}'
      parts.append(f'- {display.for_markdown(text)}{met}')
    for section in self.sections:
      parts += [f'## {section.title}', section.guide]
      if section.table:
        head, *rows = section.table
        rule = '|---' * len(head) + '|'
        parts.append('\n'.join([line(head), rule, *map(line, rows)]))
      parts += map(display.for_markdown, section.sentences)
    if self.missing:
      parts.append(f'Not started: {", ".join(self.missing)}.')
    return '\n\n'.join(parts) + '\n'


def summarize(results: Mapping[str, PhaseResult]) -> Summary:
  """Makes tables, sentences and verdicts of the figures."""
  figures = {name: x.figures for name, x in results.items()}
  sections, verdicts = [], []
  for name, result in results.items():
    try:
      table = list(device_tables.TABLES[name](figures))
      verdicts += _VERDICTS[name](figures) if name in _VERDICTS else []
      # A head without rows is no table.
      table = [[str(cell) for cell in row] for row in table]
    except _WRONG_FORM as error:
      raise ValueError(
        f'workdir: {name}.json has unexpected figures ({type(error).__name__}:'
        f' {error}); delete it, and run the check again.'
      ) from None
    sections.append(
      Section(
        phase=name,
        title=PHASES[name].title,
        guide=_GUIDES[name],
        table=table if len(table) > 1 else (),
        sentences=tuple(_sentences(result)),
      )
    )
  setting = next(iter(results.values())).setting
  lead = [
    f'{setting.devices} x {setting.platform}',
    *(f'{name} {version}' for name, version in setting.versions.items()),
    f'measured {max(x.date for x in results.values())}',
    *(['a rehearsal on tiny models'] if setting.tiny else []),
  ]
  return Summary(
    title=f'{setting.device}: check of the device',
    lead=' · '.join(lead),
    verdicts=tuple(verdicts),
    sections=tuple(sections),
    missing=tuple(x.title for name, x in PHASES.items() if name not in results),
    figures=figures,
  )


def _sentences(result: PhaseResult) -> Iterator[str]:
  """Yields errors, and the names of what is missing."""
  for name, error in result.errors.items():
    yield f'{name}: {error}' if name else f'The phase failed: {error}'
  if result.left_out:
    count = len(result.left_out) + len(result.figures) + len(result.errors)
    yield (
      f'{len(result.left_out)} of {count} measurements did not fit into the'
      f' minutes: {"; ".join(result.left_out)}. The same command measures them.'
    )


# --- Verdicts: a function by phase.


def _correctness_verdicts(figures: device_tables.Figures) -> list[Verdict]:
  """Returns verdicts on strict decoding, and on laws."""
  checks, verdicts = figures['correctness'].values(), []
  greedy = [x for x in checks if 'divergences' in x]
  laws = [x for x in checks if 'z' in x]
  for x in greedy:
    if x['must_agree']:
      equal = x['prompts'] - len(x['divergences'])
      title = 'Greedy strict decoding equals the verifier'
      value, is_met = f'{equal} of {x["prompts"]}', equal == x['prompts']
      verdicts.append(Verdict(title, value, 'prompts, float32', is_met))
  differing = sum(len(x['divergences']) for x in greedy if not x['must_agree'])
  if any(not x['must_agree'] for x in greedy):
    near = sum(device_tables.ties(x) for x in greedy if not x['must_agree'])
    title = 'First divergences that are near ties'
    detail = f'rounded numbers; gap up to {device_tables.TIE} spacings'
    value = f'{near} of {differing}' if differing else 'no divergence'
    is_met = near == differing
    verdicts.append(Verdict(title, value, detail, is_met))
  if laws:
    following = sum(x['agrees'] for x in laws)
    title, value = 'Samples follow their law', f'{following} of {len(laws)}'
    detail = f'verifications, {laws[0]["samples"]} samples each'
    is_met = following == len(laws)
    verdicts.append(Verdict(title, value, detail, is_met))
  return verdicts


def _unit_cost_verdicts(figures: device_tables.Figures) -> list[Verdict]:
  """Returns the speed of reading by the largest model, at batch 1."""
  reading = device_tables.reading(figures).items()
  passes = {k: v for k, v in reading if k[1] == 1 and 1 in v}
  if not passes:
    return []
  (shape, _), by_width = list(passes.items())[-1]
  seconds = {w: median(x['pass_s']) for w, x in by_width.items()}
  verdicts = []
  if copying := device_tables.copy_speed(figures):
    share = by_width[1]['bytes'] / seconds[1] / copying
    detail = f'of the copying speed, reading one token with {shape}'
    verdicts.append(Verdict('Memory speed', f'{share:.0%}', detail))
  if widths := [w for w in (5, *sorted(seconds)) if w > 1 and w in seconds]:
    width = widths[0]
    ratio = f'{seconds[width] / seconds[1]:.2f}'
    title = f'Reading {width} tokens, relative to one'
    verdicts.append(Verdict(title, ratio, f'{shape}, batch 1'))
  return verdicts


def _floor_verdicts(figures: device_tables.Figures) -> list[Verdict]:
  """Returns the worst ratio of a loop to its floor."""
  if not (ratios := list(device_tables.floor_ratios(figures))):
    return []
  x, row, ratio = max(ratios, key=lambda item: item[2])
  detail = f'{row["arm"]}, {x["pair"]}, batch {x["batch"]}'
  is_met = ratio <= device_tables.FLOOR_BOUND
  title = 'Loop time relative to its floor, worst'
  return [Verdict(title, f'{ratio:.2f}', detail, is_met)]


def _speed_verdicts(figures: device_tables.Figures) -> list[Verdict]:
  """Returns the largest speed-up of strict decoding."""
  strict = [
    x for x in device_tables.speeds(figures, 'speed') if x[1]['arm'] == 'strict'
  ]
  if not strict:
    return []
  x, row, ratio = max(strict, key=lambda item: item[2])
  detail = f'{row["rate"]:g} accepted, {x["pair"]}, batch {x["batch"]}'
  title = 'Strict decoding relative to the verifier alone, best'
  return [Verdict(title, f'{ratio:.2f} x', detail)]


def _curve_verdicts(figures: device_tables.Figures) -> list[Verdict]:
  """Returns the cost of a curve of the first pair."""
  rows = list(figures['curve'].values())[:1]
  return [
    Verdict(
      f'{x["leniences"]} leniences, relative to one',
      f'{device_tables.curve_ratio(x):.2f}',
      x['pair'],
    )
    for x in rows
  ]


_VERDICTS: Mapping[str, Callable[[device_tables.Figures], list[Verdict]]] = {
  'correctness': _correctness_verdicts,
  'unit_costs': _unit_cost_verdicts,
  'floor': _floor_verdicts,
  'speed': _speed_verdicts,
  'curve': _curve_verdicts,
}
