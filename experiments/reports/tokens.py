"""An answer's tokens: who wrote them, in which block, when, and how likely.

Without a script a token says what is known of it in its title, and the clock's
bars are there; the script shows the same beside the pointer or the cursor, and
plays the blocks in modelled time.
"""

import html
import itertools
from collections.abc import Sequence

from experiments import records as records_lib
from experiments.records import Record, Trace, View, metrics
from experiments.reports import styles

# Source -> (what the legend calls it, what it means).
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


def duration(record: Record, costs: metrics.Costs) -> float:
  """Modelled seconds of an answer."""
  return sum(metrics.modelled_s(record, costs))


def blocks(record: Record, trace: Trace) -> list[range]:
  """Places of each block's tokens: drafts, and the token that ends them."""
  count = len(trace.tokens)
  draft = records_lib.SOURCES.index('draft')
  ends = [i + 1 for i in range(count) if trace.sources[i] != draft]
  if not record.gamma:
    ends = range(1, count + 1)
  # An answer may end inside a block.
  edges = list(dict.fromkeys((0, *ends, count)))
  return [range(*edge) for edge in itertools.pairwise(edges)]


def _spans(
  record: Record, trace: Trace, costs: metrics.Costs
) -> list[tuple[range, float, float]]:
  """Each block, its seconds of drafting and those of verifying.

  All blocks cost the same, for all are drafted and read whole. Not so those of
  a sequential cascade, which are as long as they have to be.
  """
  drafting, verifying = metrics.modelled_s(record, costs)
  found = blocks(record, trace)
  drafted, read = [1.0] * len(found), [1.0] * len(found)
  if record.gamma and record.verification == 'sequential':
    residual = records_lib.SOURCES.index('residual')
    drafted = [float(len(block)) for block in found]
    read = [float(trace.sources[block[-1]] == residual) for block in found]
  return [
    (
      block,
      drafting * d / sum(drafted),
      verifying * r / (sum(read) or 1),
    )
    for block, d, r in zip(found, drafted, read, strict=True)
  ]


def _visible(text: str) -> str:
  """A text, escaped, of which nothing is unseen."""
  text = html.escape(text)
  for character, visible in _VISIBLE.items():
    text = text.replace(character, visible)
  return text


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
    for text in (view.drafter[index], view.verifier[index])
  )
  if drafter == verifier:
    return [*lines, f'both models would say {drafter}']
  return [*lines, f'likeliest: drafter {drafter}, verifier {verifier}']


def _token(record: Record, trace: Trace, view: View | None, index: int) -> str:
  source = records_lib.SOURCES[trace.sources[index]]
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
  text = _visible(trace.pieces[index] or ('[end]' if last else '∅'))
  title = html.escape('\n'.join(lines))
  return f'<span class="t {source}" title="{title}"{chances}>{text}</span>'


def _bars(spans: Sequence[tuple[range, float, float]], end: float) -> str:
  """A clock's bars: low where the drafter works, high where the verifier."""
  at, low, high = 0.0, [], []
  scale = _UNITS / end if end else 0.0
  for _, drafting, verifying in spans:
    split, to = (at + drafting) * scale, (at + drafting + verifying) * scale
    start, at = at * scale, at + drafting + verifying
    # A gap is left between blocks, which none is too short for.
    gap = min(2.0, (to - start) / 4)
    low.append(f'M{start:.1f} 6h{split - start:.1f}v4H{start:.1f}z')
    if verifying:
      width = max(0.0, to - split - gap)
      high.append(f'M{split:.1f} 0h{width:.1f}v10H{split:.1f}z')
  return (
    '<div class="track" aria-hidden="true">'
    f'<svg viewBox="0 0 {_UNITS} 10" preserveAspectRatio="none">'
    f'<path class="drafting" d="{"".join(low)}"/>'
    f'<path class="verifying" d="{"".join(high)}"/></svg><i></i></div>'
  )


def answer(
  record: Record,
  trace: Trace,
  view: View | None,
  costs: metrics.Costs,
  name: str,
  end: float,
) -> str:
  """An answer with its clock.

  Args:
    record: What came of it.
    trace: Its tokens.
    view: What was said of them, if anybody looked.
    costs: Measured unit costs.
    name: Of what wrote it.
    end: Seconds at the right end of the clock.
  """
  spans = _spans(record, trace, costs)
  at, parts = 0.0, []
  for block, drafting, verifying in spans:
    to = at + drafting + verifying
    inner = ''.join(_token(record, trace, view, i) for i in block)
    parts.append(
      f'<span class="block" data-from="{at:.6g}" data-to="{to:.6g}">'
      f'{inner}</span>'
    )
    at = to
  # Of the drafter, one call for a token of each of its drafts.
  step = costs.drafter(record.drafts) if record.drafter_calls else 0.0
  pace = at / costs.verifier_token_s / max(1, record.emitted)
  alone = '' if record.gamma else ' no-blocks'
  return f"""{_bars(spans, end)}
<p class="clock"><b role="timer">{styles.milliseconds(at)}</b> modelled,
{styles.number(pace)} times the verifier's per token</p>
<div class="text tokens{alone}" data-name="{html.escape(name)}"
data-step="{step:.6g}" data-to="{at:.6g}">{''.join(parts)}</div>"""


def legend(alone: bool) -> str:
  """What colours, lines and bars mean.

  Args:
    alone: Whether an answer of the verifier alone is shown too.
  """
  known = [(source, *said) for source, said in SOURCES.items()]
  known += [_ALONE] if alone else []
  entries = ''.join(
    f'<span title="{html.escape(meaning)}">'
    f'<span class="t {source}">{html.escape(name)}</span></span>'
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


CSS = """
.t { border-radius: 3px; padding: .1em 0; margin-right: 1px;
  box-decoration-break: clone; -webkit-box-decoration-break: clone }
.draft { background: var(--draft) }
.residual { background: var(--residual);
  border-bottom: 2px solid var(--residual-line) }
.bonus { background: var(--bonus);
  border-bottom: 2px dotted var(--bonus-line) }
.alone { border-bottom: 2px dashed var(--soft) }
.block + .block::before { content: ''; margin: 0 3px 0 2px;
  border-left: 2px solid var(--soft); padding: .15em 0 }
.no-blocks .block::before { display: none }
.sources { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem;
  font-size: .92rem }
.sources .t { padding: .15em .5em }
.key { width: 1.6em; height: .8em }
.drafting { fill: var(--accent) }
.verifying { fill: var(--residual-line) }
.lanes { display: grid; gap: 1rem 1.5rem; margin-top: .8rem;
  grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)) }
.lane { min-width: 0; border-top: 1px solid var(--faint); padding-top: .7rem }
.example .lane header { margin-bottom: .4rem }
.track { position: relative }
.track svg { display: block; width: 100%; height: 14px }
.track i { position: absolute; inset: -3px auto -3px var(--at, 100%);
  border-left: 2px solid var(--ink); display: none }
.playing .track i { display: block }
.clock { color: var(--soft); font-size: .875rem; margin: .2rem 0 .5rem;
  font-variant-numeric: tabular-nums }
.clock b { color: var(--ink) }
.tokens .t { cursor: default; transition: opacity .15s }
.tokens .t:focus { outline: 2px solid var(--accent); outline-offset: 1px }
.tokens .later, .block:has(> .later:first-child)::before { opacity: .12 }
.tokens .proposed { background: none; outline: 1px dashed var(--accent);
  outline-offset: -1px }
.controls { display: flex; flex-wrap: wrap; align-items: center;
  gap: .5rem .8rem; font-size: .875rem; margin-top: .8rem }
.controls[hidden] { display: none }
.controls button { font: inherit; color: var(--ink); cursor: pointer;
  background: var(--page); border: 1px solid var(--soft); border-radius: 6px;
  padding: .25rem .8rem; min-width: 5.5rem; min-height: 2rem }
.controls label { display: flex; align-items: center; gap: .5rem }
.controls input { accent-color: var(--accent); width: 8rem }
.controls :focus-visible { outline: 2px solid var(--accent);
  outline-offset: 1px }
.controls output { color: var(--soft); font-variant-numeric: tabular-nums }
.tip { position: absolute; z-index: 9; max-width: min(22rem, 94vw);
  pointer-events: none; background: var(--card); color: var(--ink);
  border: 1px solid var(--soft); border-radius: 8px; padding: .5rem .7rem;
  font-size: .875rem; line-height: 1.4; white-space: pre-wrap;
  overflow-wrap: anywhere; box-shadow: 0 4px 14px #0003 }
.tip p { margin: 0 }
.tip small { color: var(--soft) }
.tip .said { display: grid; grid-template-columns: auto 1fr auto;
  gap: .1rem .5rem; align-items: center; margin: .3rem 0;
  font-variant-numeric: tabular-nums }
.tip .said i { height: .55em; background: linear-gradient(var(--accent)
  0 0) 0 / var(--p, 0%) 100% no-repeat var(--faint); min-width: 7rem }
.unseen { position: absolute; clip-path: inset(50%); width: 1px; height: 1px;
  overflow: hidden; white-space: nowrap }
@media (prefers-reduced-motion: reduce) { .tokens .t { transition: none } }
@media print { .controls { display: none } }
"""

JS = """
const tip = document.createElement('div');
tip.className = 'tip';
tip.id = 'tip';
tip.setAttribute('role', 'tooltip');
tip.hidden = true;
document.body.append(tip);
const line = (tag, text) => {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
};
function tell(token) {
  const [head, ...rest] = token.dataset.note.split('\\n');
  const chances = document.createElement('div');
  if (token.dataset.said) {
    // The same numbers as bars, with the names of who says them.
    const texts = rest.shift().split(' · ').map(each => each.split(' '));
    const who = {q: 'drafter q', p: 'verifier p', π: 'emitted π'};
    token.dataset.said.split(' ').forEach((value, i) => {
      const bar = document.createElement('i');
      bar.style.setProperty('--p', 100 * value + '%');
      chances.append(
        line('span', who[texts[i][0]]), bar, line('span', texts[i][1]));
    });
    chances.className = 'said';
  }
  tip.replaceChildren(line('b', head), chances,
    ...rest.map(each => line('p', each)), line('small', token.dataset.place));
  tip.hidden = false;
  const at = token.getClientRects()[0], size = tip.getBoundingClientRect();
  const room = document.documentElement.clientWidth - size.width - 8;
  const below = at.bottom + 6 + size.height < innerHeight;
  const top = below || at.top < size.height + 8
    ? at.bottom + 6 : at.top - size.height - 6;
  tip.style.left = scrollX + Math.max(8, Math.min(at.left, room)) + 'px';
  tip.style.top = scrollY + top + 'px';
}
const quiet = () => { tip.hidden = true; };
document.addEventListener('keydown', e => { if (e.key === 'Escape') quiet(); });

// A cursor goes along an answer: one of its tokens can be reached by tab.
for (const answer of document.querySelectorAll('.tokens')) {
  const blocks = [...answer.querySelectorAll('.block')];
  const tokens = [...answer.querySelectorAll('.t')];
  const bare = answer.classList.contains('no-blocks');
  answer.setAttribute('role', 'listbox');
  answer.setAttribute('aria-orientation', 'horizontal');
  answer.setAttribute('aria-label',
    `Answer by ${answer.dataset.name}; arrow keys go from token to token`
    + (bare ? '' : ', up and down from block to block'));
  blocks.forEach((block, b) => {
    block.setAttribute('role', 'group');
    block.setAttribute('aria-label', `Block ${b + 1} of ${blocks.length}`);
    [...block.children].forEach((token, i, all) => {
      token.dataset.place = bare ? `token ${b + 1} of ${blocks.length}`
        : `${i + 1} of ${all.length} in block ${b + 1} of ${blocks.length}`;
    });
  });
  let current = tokens[0];
  tokens.forEach((token, i) => {
    token.dataset.note = token.title;
    token.removeAttribute('title');
    token.setAttribute('role', 'option');
    token.setAttribute('aria-selected', false);
    token.setAttribute('aria-describedby', 'tip');
    token.tabIndex = i ? -1 : 0;
    token.onfocus = () => {
      current.tabIndex = -1;
      current.setAttribute('aria-selected', false);
      current = token;
      token.tabIndex = 0;
      token.setAttribute('aria-selected', true);
      tell(token);
    };
    token.onblur = quiet;
    token.onmouseenter = () => tell(token);
    token.onmouseleave = () => {
      const focused = document.activeElement;
      if (focused.dataset.note) tell(focused); else quiet();
    };
  });
  answer.onkeydown = e => {
    const i = tokens.indexOf(current), b = blocks.indexOf(current.parentNode);
    const block = step => (blocks[b + step] || blocks[b]).firstElementChild;
    const to = {
      ArrowRight: () => tokens[i + 1], ArrowLeft: () => tokens[i - 1],
      ArrowDown: () => block(1), ArrowUp: () => block(-1),
      Home: () => tokens[0], End: () => tokens.at(-1),
    }[e.key];
    if (!to || e.ctrlKey || e.altKey || e.metaKey) return;
    e.preventDefault();
    (to() || current).focus();
  };
}

// Both answers of a prompt, in modelled time.
const calm = matchMedia('(prefers-reduced-motion: reduce)');
const span = s => `${Number((s * 1e3).toPrecision(3))} ms`;
for (const example of document.querySelectorAll('.example')) {
  const controls = example.querySelector('.controls');
  const button = controls.querySelector('.play');
  const speed = controls.querySelector('input');
  const lanes = [...example.querySelectorAll('.lane')].map(lane => {
    const answer = lane.querySelector('.tokens'), {step, to} = answer.dataset;
    const tokens = [...answer.querySelectorAll('.block')].flatMap(block =>
      [...block.children].map((token, i) => {
        const {from, to} = block.dataset, draft = token.matches('.draft');
        const at = draft ? Math.min(to, +from + (i + 1) * step) : +to;
        return {token, draft, at, to: +to};
      }));
    return {tokens, to: +to, clock: lane.querySelector('.clock b'),
      track: lane.querySelector('.track'), name: answer.dataset.name};
  });
  const end = Math.max(...lanes.map(lane => lane.to));
  const news = document.createElement('p');
  news.className = 'unseen';
  news.setAttribute('aria-live', 'polite');
  controls.append(news);
  controls.hidden = false;
  // Seconds of the model; where they stand, and whether they go on.
  let now = end, playing = false, before = null;
  const pace = () => end / 8 * 2 ** speed.value;
  function show() {
    const over = now >= end;
    example.classList.toggle('playing', !over);
    for (const lane of lanes) {
      let t = Math.min(now, lane.to);
      // Without motion, a block at a time.
      if (calm.matches)
        t = Math.max(0, ...lane.tokens.map(x => x.to).filter(to => to <= t));
      for (const x of lane.tokens) {
        x.token.classList.toggle('later', t < x.at);
        x.token.classList.toggle('proposed', t >= x.at && t < x.to);
      }
      lane.clock.textContent = span(t);
      lane.track.style.setProperty('--at', 100 * t / end + '%');
    }
    button.textContent = playing ? 'Pause' : over ? 'Play' : 'Go on';
  }
  function frame(time) {
    if (!playing) return;
    // A page that was away does not jump.
    now += Math.min((time - (before ?? time)) / 1e3, .25) * pace();
    before = time;
    if (now >= end) {
      playing = false;
      news.textContent = 'Ended: '
        + lanes.map(lane => `${lane.name} after ${span(lane.to)}`).join(', ');
    }
    show();
    requestAnimationFrame(frame);
  }
  function play(from) {
    now = from;
    before = null;
    news.textContent = '';
    if (!playing) requestAnimationFrame(frame);
    playing = true;
    show();
  }
  button.onclick = () => {
    if (playing) { playing = false; show(); }
    else play(now < end ? now : 0);
  };
  controls.querySelector('.restart').onclick = () => play(0);
  speed.oninput = () => {
    const text = `${span(pace())} modelled a second`;
    controls.querySelector('output').textContent = text;
    speed.setAttribute('aria-valuetext', text);
  };
  speed.oninput();
}
"""
