"""The page itself: one HTML file that needs nothing else, not even a network.

Plots are inline SVG and take their colours from the style sheet, which has a
light and a dark set; the only script sorts tables, lifts out the curve that the
pointer rests on and plays answers, and nothing is hidden without it.
"""

import dataclasses
import html
import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from experiments.analysis import roles
from experiments.analysis.comparisons import Choice
from experiments.analysis.runs import Run
from experiments.records import metrics
from experiments.records.metrics import Costs
from experiments.reports import (
  examples,
  figures,
  questions,
  styles,
  tables,
  tokens,
)

_GUIDES = {
  'relative_latency': (
    'Up and to the left is better: each line is one method as its lenience'
    ' grows, and left of 1 is faster than the verifier alone.'
  ),
  'rejection_rate': (
    'The same points by the share of examined drafts turned down: of two'
    ' lines, the higher keeps more quality for the same rejections.'
  ),
  'tuned': (
    'Each point is shown at the gamma that made it fastest on these same'
    ' examples; what is emitted has the same law at any gamma, so that quality'
    ' differs by noise alone.'
  ),
  'bonus': (
    "Where the bonus is the verifier's own, gamma does change the law, and"
    ' every gamma is a point.'
  ),
  'variants': (
    'Hollow marks on dashed lines are a method with options other than the'
    ' standard ones; the legend names them.'
  ),
  'oracle': (
    'An oracle looks at the verifier at every token to decide, and pays only'
    ' where it defers: a bound, not a method that could be run.'
  ),
  'panels': (
    'Each method alone, the others pale behind it; dashed are the two models'
    ' alone, and bands are 95 % bootstrap intervals over examples.'
  ),
  'speed': (
    'This task is about speed alone: nothing says how good an answer is, so'
    ' that only strict decoding keeps what the verifier would have said.'
  ),
  'by_rejections': (
    'Down is faster, and below 1 faster than the verifier alone; to the left'
    ' fewer examined drafts are turned down.'
  ),
  'relative_length': (
    'Above 1, answers are longer than the verifier would have written, which'
    ' eats into the time saved per token.'
  ),
}

# Rows of a table that is shown without asking.
_LONG = 40

_CSS = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1d2430; --soft: #5d6878;
  --faint: #e3e7ec; --accent: #0b4f8a;
  --draft: #d9ebfa; --residual: #ffd9b3; --bonus: #cdeedd;
  --residual-line: #b85400; --bonus-line: #00704f; --right: #00704f;
  --wrong: #b3261e; $light }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161c; --card: #1a2028; --ink: #e6eaf0; --soft: #9aa6b5;
  --faint: #323b47; --accent: #7cc8f5;
  --draft: #1c3c5a; --residual: #63390f; --bonus: #17493a;
  --residual-line: #ff9d52; --bonus-line: #43d3a4; --right: #43d3a4;
  --wrong: #ff8a80; $dark } }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif }
main, body > header, body > footer { max-width: 1280px; margin: 0 auto;
  padding: 0 1.5rem }
body > header { padding-top: 2.5rem }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem;
  letter-spacing: -.01em }
h2 { font-size: 1.35rem; margin: 2.6rem 0 .8rem }
h3 { font-size: 1rem; margin: 0 0 .2rem }
.lead { color: var(--soft); margin: 0; max-width: 75ch }
.tiles { display: grid; gap: 1rem; margin: 0 0 1rem;
  grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)) }
.tile, figure, .example, .scroll { background: var(--card);
  border: 1px solid var(--faint); border-radius: 10px }
.tile { padding: .8rem 1rem }
.tile b { display: block; font-size: 1.6rem; line-height: 1.25;
  font-weight: 600; font-variant-numeric: tabular-nums }
.tile span, .tile small { color: var(--soft); font-size: .875rem }
.tile span { display: block }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: 0 0 .8rem;
  padding: .4rem 0; list-style: none; font-size: .92rem; position: sticky;
  top: 0; background: var(--page); z-index: 2 }
.legend li { cursor: default; white-space: nowrap }
.marker { width: .95em; height: .95em; vertical-align: -.1em }
.marker.line { width: 2.4em; height: 1.28em; vertical-align: -.28em }
.pair { display: grid; gap: 1rem; margin-bottom: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)) }
.panels { display: grid; gap: 1rem; margin-bottom: 1rem;
  grid-template-columns: 2fr 1fr }
@media (max-width: 60rem) { .panels { grid-template-columns: 100% }
  .panels figure:first-child { overflow-x: auto }
  .panels figure:first-child svg { min-width: 44rem }
  figure.wide { overflow-x: auto }
  figure.wide svg { min-width: 40rem } }
figure { margin: 0; padding: 1rem 1rem .8rem }
figure svg { display: block; width: 100%; height: auto }
figure svg * { stroke-linejoin: round; stroke-linecap: butt }
figcaption, .guide { color: var(--soft); font-size: .92rem }
figcaption { margin-top: .5rem }
.guide { max-width: 75ch; margin: 0 0 .6rem }
[data-method] { transition: opacity .12s }
.pair [data-method][data-band] { opacity: .45 }
.focus [data-method]:not(.on, [data-method=verifier_only],
  [data-method=drafter_only]) { opacity: .1 }
.pair .focus .on[data-method] { opacity: 1 }
.scroll { overflow: auto; max-height: 35.2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
.summary { width: 100%; font-size: .875rem }
.summary th, .summary td { padding: .32rem .7rem; text-align: right;
  white-space: nowrap; border-bottom: 1px solid var(--faint) }
.summary th:first-child { text-align: left; font-weight: 500;
  position: sticky; left: 0; background: var(--card) }
.summary thead th { position: sticky; top: 0; background: var(--card);
  vertical-align: bottom; z-index: 1 }
.summary thead th:first-child { z-index: 2 }
.summary button { all: unset; cursor: pointer; font-weight: 600;
  white-space: normal }
.summary button:focus-visible { outline: 2px solid var(--accent) }
[aria-sort=ascending] button::after { content: ' ↑' }
[aria-sort=descending] button::after { content: ' ↓' }
.summary tbody tr:hover { background: var(--page) }
.interval { color: var(--soft); margin-left: .4em }
details { margin: 1rem 0 }
summary { cursor: pointer; color: var(--accent) }
.example { margin: 0 0 1rem; padding: .9rem 1.1rem }
.example header { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem;
  color: var(--soft); font-size: .9rem; margin-bottom: .5rem }
.right { color: var(--right); font-weight: 600 }
.wrong { color: var(--wrong); font-weight: 600 }
dl { display: grid; grid-template-columns: 6rem 1fr; gap: .5rem 1rem;
  margin: 0 }
dt { color: var(--soft); font-size: .875rem }
dd { margin: 0; min-width: 0 }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font: .875rem/1.75
  ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace }
.question h3 { margin-top: 1.2rem; font-weight: 600 }
.question .scroll { margin-bottom: 1rem }
.question figure.wide { max-width: 62rem; margin: 0 0 1rem }
.allowed { border-left: 4px solid var(--residual-line); padding: .2rem .8rem;
  max-width: 75ch }
.settings { font-size: .875rem }
.settings th, .settings td { text-align: left; vertical-align: top;
  padding: .15rem 1rem .15rem 0; font-weight: 400; overflow-wrap: anywhere }
.settings th { color: var(--soft) }
body > footer { color: var(--soft); font-size: .875rem; margin-top: 2.5rem;
  padding-bottom: 3rem }
@media (max-width: 40rem) {
  main, body > header, body > footer { padding-inline: .8rem }
  .legend { position: static }
  dl { grid-template-columns: 1fr; gap: .1rem }
  dd { margin-bottom: .6rem } }
@media print { .scroll { max-height: none; overflow: visible }
  .legend { position: static } }
"""

_JS = """
for (const table of document.querySelectorAll('table.summary')) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, i) => head.querySelector('button').onclick = () => {
    const up = head.getAttribute('aria-sort') !== 'ascending';
    heads.forEach(h => h.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    const key = row => row.cells[i].dataset.key;
    const order = (a, b) => {
      if (i === 0) return (up ? 1 : -1) * key(a).localeCompare(key(b));
      const x = Number(key(a)), y = Number(key(b));
      if (isNaN(x) && isNaN(y))
        return (up ? 1 : -1) * key(a).localeCompare(key(b));
      if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
      return x === y ? 0 : (up ? 1 : -1) * (x < y ? -1 : 1);
    };
    body.append(...[...body.rows].sort(order));
  });
}
for (const entry of document.querySelectorAll('.legend [data-key]')) {
  const plots = entry.closest('section').querySelectorAll('figure');
  const focus = on => plots.forEach(plot => {
    plot.classList.toggle('focus', on);
    plot.querySelectorAll('[data-method]').forEach(e => e.classList.toggle(
      'on', on && e.dataset.method === entry.dataset.key));
  });
  entry.onmouseenter = () => focus(true);
  entry.onmouseleave = () => focus(false);
}
"""


def _css(table: Mapping[str, styles.Style]) -> str:
  def colours(of: str) -> str:
    return ' '.join(f'{s.variable}: {getattr(s, of)};' for s in table.values())

  text = _CSS.replace('$light', colours('light'))
  return text.replace('$dark', colours('dark'))


def _figure(svg: str, guide: str) -> str:
  return f'<figure>{svg}<figcaption>{html.escape(guide)}</figcaption></figure>'


def _captioned(drawing: figures.Drawing) -> str:
  return f'{drawing.svg}<figcaption>{html.escape(drawing.caption)}</figcaption>'


def _question(
  question: questions.Question, looks: Mapping[str, styles.Style], note: str
) -> str:
  """A question with what answers it; long tables are folded away."""
  shown = [table for table in question.tables if len(table.frame)]
  drawn = ''.join(drawing.svg for drawing in question.drawings)
  variants = [v for v in looks if f'data-method="{html.escape(v)}"' in drawn]
  parts = [_legend(variants, looks)] if variants else []
  parts += [
    f'<figure class="wide">{_captioned(drawing)}</figure>'
    for drawing in question.drawings
    if drawing.wide
  ]
  narrow = ''.join(
    f'<figure>{_captioned(drawing)}</figure>'
    for drawing in question.drawings
    if not drawing.wide
  )
  parts += [f'<div class="pair">{narrow}</div>'] if narrow else []
  parts += [
    f'<details><summary>{html.escape(table.title)}, {len(table.frame)} rows'
    f'</summary>{text}</details>'
    if len(table.frame) > _LONG
    else text
    for table in shown
    for text in [tables.interactive(table, looks, note)]
  ]
  if not parts:
    parts = [f'<p class="guide">{html.escape(question.otherwise)}</p>']
  body = '\n'.join(parts)
  return f"""<section class="question">
<h2>{html.escape(question.title)}</h2>
<p class="guide">{html.escape(question.guide)}</p>
{body}
</section>"""


def _tile(what: str, value: str, note: str) -> str:
  return (
    f'<div class="tile"><span>{html.escape(what)}</span>'
    f'<b>{html.escape(value)}</b><small>{html.escape(note)}</small></div>'
  )


def _tiles(frame: pd.DataFrame, table: Mapping[str, styles.Style]) -> str:
  """The two models alone, and the fastest point that scored no worse."""
  known = frame.quality.notna().any()
  tiles = []
  for baseline in roles.BASELINES:
    rows = frame[frame.method == baseline]
    if len(rows):
      row = rows.iloc[0]
      tiles.append(
        _tile(
          table[baseline].label,
          styles.number(row.quality, 3),
          f'quality, at latency {styles.number(row.relative_latency)}',
        )
        if known
        else _tile(
          table[baseline].label,
          styles.number(row.relative_latency),
          'latency per token',
        )
      )
  rows = frame[frame.method == roles.VERIFIER]
  if len(rows) and known:
    oracle = list(map(roles.is_oracle, frame.method, frame.verification))
    others = frame[~frame.method.isin(roles.BASELINES)]
    others = others[~pd.Series(oracle, frame.index)[others.index]]
    fit = others[others.quality >= rows.iloc[0].quality]
    what = 'Fastest that scored no worse'
    if len(fit.relative_latency.dropna()):
      best = fit.loc[fit.relative_latency.idxmin()]
      speed = styles.number(1 / best.relative_latency)
      tiles.append(
        _tile(
          what,
          f'{speed} times as fast',
          f'{table[best.variant].label}, {best.place};'
          ' chosen on these same examples, with no margin for chance',
        )
      )
    else:
      tiles.append(_tile(what, 'none', 'every point scored worse'))
  return f'<div class="tiles">{"".join(tiles)}</div>'


def _legend(variants: Sequence[str], table: Mapping[str, styles.Style]) -> str:
  entries = ''.join(
    f'<li data-key="{html.escape(v)}">{figures.marker(table[v])}'
    f' {html.escape(table[v].label)}</li>'
    for v in variants
  )
  return f'<ul class="legend">{entries}</ul>'


@dataclasses.dataclass(frozen=True)
class _Cut:
  """Rows that are shown together.

  Attributes:
    title: Of the section.
    frame: Of one task and temperature; with the curves that have no gamma.
    tuned: Whether each point has a gamma of its own.
    under: Cuts that are folded away below it.
  """

  title: str
  frame: pd.DataFrame
  tuned: bool = False
  under: tuple['_Cut', ...] = ()


def _cuts(frame: pd.DataFrame) -> Iterator[_Cut]:
  """A cut per task and temperature; where gamma was varied, tuned first."""
  # The models alone, and cascades of whole answers, have no gamma.
  plain = frame.groupby('variant').gamma.transform('max') == 0
  several = [
    c for c in ('temperature', 'gamma') if frame[~plain][c].nunique() > 1
  ]
  keys = ['task', 'temperature', 'run']
  for (task, temperature, run), part in frame.groupby(keys, sort=False):
    base = f'{styles.words(task)}, {run}' if run else styles.words(task)
    if 'temperature' in several:
      base = f'{base}, temperature {temperature:g}'
    without = plain[part.index]
    gammas = part[~without].gamma.unique()
    single = []
    for gamma in gammas:
      title = f'{base}, gamma {gamma}' if 'gamma' in several else base
      single.append(_Cut(title, part[without | (part.gamma == gamma)]))
    if len(single) > 1:
      # Curves in order of appearance, each along its lenience.
      appears = {v: i for i, v in enumerate(part.variant.unique())}
      best = metrics.tuned(part)
      best = best.assign(rank=best.variant.map(appears)).sort_values(
        ['rank', 'lenience'], kind='stable'
      )
      yield _Cut(f'{base}, gamma tuned', best, True, tuple(single))
    else:
      yield from single or [_Cut(base, part)]


def _part(
  cut: _Cut,
  table: Mapping[str, styles.Style],
  name: str,
  drawn: list[figures.Drawing],
) -> str:
  """Everything about one cut, and what is folded away below it.

  Args:
    cut: What is shown.
    table: Styles by variant.
    name: Unique in the page.
    drawn: Its own drawings are added to it, not those of what is folded away.
  """
  frame = cut.frame
  # A sequential cascade has no blocks, whatever simulated it.
  gammas = frame.gamma.where(frame.verification != 'sequential', 0)
  shown = gammas if cut.tuned else 0 * gammas
  frame = frame.assign(
    relative_length=figures.relative_length(frame),
    gamma=gammas,
    place=list(map(styles.place, frame.lenience, shown)),
  )

  def against(x: str, y: str, **size) -> str:
    made = figures.curves(
      frame, table, x=x, y=y, name=f'{name}-{x}-{y}', **size
    )
    drawn.append(made)
    guide = {'quality': x, 'relative_latency': 'by_rejections'}.get(y, y)
    return _figure(made.svg, _GUIDES[guide])

  known = frame.quality.notna().any()
  if known:
    pair = against('relative_latency', 'quality')
    pair += against('rejection_rate', 'quality')
  else:
    pair = against('rejection_rate', 'relative_latency')
  third = ''
  if not frame.method.isin(roles.BASELINES).all():
    if known:
      made = figures.panels(
        frame, table, x='relative_latency', y='quality', name=f'{name}-panels'
      )
      drawn.append(made)
      third = _figure(made.svg, _GUIDES['panels'])
    if frame.relative_length.notna().any():
      third += against('relative_latency', 'relative_length', size=(5.2, 5.3))
    third = f'<div class="panels">{third}</div>'
  variants = [v for v in table if (frame.variant == v).any()]
  notes = [] if known else ['speed']
  notes += ['tuned'] if cut.tuned else []
  if cut.tuned and (frame.bonus_from == 'verifier').any():
    notes.append('bonus')
  notes += ['variants'] if any(table[v].dashes for v in variants) else []
  if any(map(roles.is_oracle, frame.method, frame.verification)):
    notes.append('oracle')
  guide = ' '.join(_GUIDES[note] for note in notes)
  guide = f'<p class="guide">{html.escape(guide)}</p>\n' if guide else ''
  under = '\n'.join(
    _part(below, table, f'{name}-{i}', []) for i, below in enumerate(cut.under)
  )
  if under:
    under = (
      f'\n<details><summary>{html.escape(styles.words(cut.frame.task.iloc[0]))}'
      f', each gamma by itself</summary>\n{under}\n</details>'
    )
  return f"""<section>
<h2>{html.escape(cut.title)}</h2>
{guide}{_tiles(frame, table)}
{_legend(variants, table)}
<div class="pair">{pair}</div>
{third}
{tables.summary(frame, table, cut.tuned)}
</section>{under}"""


def _lead(config: Mapping, frame: pd.DataFrame) -> str:
  """One line of what was run."""

  def values(column: str, rows: pd.DataFrame) -> str:
    return ', '.join(f'{v:g}' for v in sorted(rows[column].unique()))

  parts = []
  if config.get('pair'):
    parts.append(f'pair {config["pair"]}')
  elif config.get('drafter') and config.get('verifier'):
    parts.append(f'{config["drafter"]} drafts for {config["verifier"]}')
  parts.append(f'{values("n", frame)} examples a task')
  drafted = frame[frame.gamma > 0]
  if len(drafted):
    parts.append(f'gamma {values("gamma", drafted)}')
  parts.append(f'temperature {values("temperature", frame)}')
  return ' · '.join(parts)


def _costs(costs: Costs) -> str:
  """Unit costs in words."""
  blocks = '; '.join(
    f'verifier call on a block of {gamma} drafts {styles.milliseconds(seconds)}'
    for gamma, seconds in sorted(costs.verify_s.items())
  )
  return f"""verifier token
{styles.milliseconds(costs.verifier_token_s)}; drafter token
{styles.milliseconds(costs.drafter_token_s)}; {blocks}"""


def _footer(told: Mapping[str, Run], choice: Choice) -> str:
  versions = {'python': platform.python_version()} | {
    name: importlib.metadata.version(name)
    for name in ('numpy', 'scipy', 'pandas', 'matplotlib', 'statsmodels')
  }
  several = len(told) > 1
  costs, details = [], []
  for name, run in told.items():
    # What the run itself used, if it says so, not what writes the page.
    versions |= run.config.get('versions') or {}
    of = html.escape(f' of {name}') if several else ''
    costs.append(f'Unit costs{of}: {_costs(run.costs)}.')
    if run.config:
      whose = html.escape(name) if several else 'the run'
      details.append(
        f'<details><summary>Settings of {whose}</summary>'
        f'{tables.settings(run.config)}</details>'
      )
  line = ', '.join(f'{name} {v}' for name, v in versions.items())
  costs, details = ' '.join(costs), '\n'.join(details)
  return f"""<footer>
<p>Latency is modelled: counted calls times measured unit costs, per emitted
token, over the verifier's cost of one token. {costs} Prefill is not in it.
Time on the clock stands beside it in the tables and is never merged with
it.</p>
<p>Intervals are percentiles of {choice.resamples:,} bootstrap resamples of the
examples, seed {choice.seed}; those of differences are paired: both points have
the same resamples.</p>
{details}
<p>{html.escape(line)}</p>
</footer>"""


def render(
  frame: pd.DataFrame,
  shown: Sequence[examples.Shown],
  told: Mapping[str, Run],
  asked: Sequence[questions.Question],
  looks: Mapping[str, styles.Style],
  choice: Choice,
  note: str = '',
) -> tuple[str, list[figures.Drawing]]:
  """The page, and all that is drawn on it.

  Args:
    frame: The summary, with `variant`, and `run` where it has to be told.
    shown: Answers that are shown, token by token.
    told: The runs by name.
    asked: Questions with their answers.
    looks: Styles by variant.
    choice: How intervals were drawn.
    note: What has to be known before anything is compared; may be empty.
  """
  several = frame.gamma[frame.gamma > 0].nunique() > 1
  config = next(iter(told.values())).config
  name = str(config.get('name') or 'Speculative cascades')
  drawn: list[figures.Drawing] = []
  parts = '\n'.join(
    _part(cut, looks, f'p{i}', drawn) for i, cut in enumerate(_cuts(frame))
  )
  answers = '\n'.join(_question(one, looks, note) for one in asked)
  drawn += [drawing for question in asked for drawing in question.drawings]
  lead = _lead(config, frame)
  if len(told) > 1:
    lead += f' · workdirs {", ".join(told)}'
  marked = f'<p class="allowed">{html.escape(note)}</p>\n' if note else ''
  text = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(name)}: quality and latency</title>
<style>{_css(looks)}{tokens.CSS}</style>
</head>
<body>
<header>
<h1>{html.escape(name)}</h1>
<p class="lead">{html.escape(lead)}</p>
{marked}</header>
<main>
{parts}
{answers}
{examples.section(shown, looks, several, next(iter(told.values())).costs)}
</main>
{_footer(told, choice)}
<script>{_JS}{tokens.JS}</script>
</body>
</html>
"""
  return text, drawn
