"""Tests of the page of a run and of the launcher that rebuilds it."""

import dataclasses
import html.parser
import json
import math
import pathlib
import re
import shutil
import xml.etree.ElementTree

import answers
import launching
import matplotlib.image
import pandas as pd
import pytest
from answers import COSTS

from cascades import methods
from experiments import records, tasks
from experiments.analysis import (
  comparisons,
  example_selection,
  named_points,
  race,
  reference_points,
  runs,
  slices,
)
from experiments.records import metrics, unit_costs
from experiments.reports import (
  AnalysisConfig,
  columns,
  drawings,
  sections,
  styles,
  tables,
  write_report,
)
from experiments.sweeps import sequence

LENIENCES = {
  'verifier_only': [math.nan],
  'drafter_only': [math.nan],
  'opt': [-math.inf, 0.0, math.inf],
  'token_v3': [-1.0, 0.25, 1.0],
}
MINUS = '\N{MINUS SIGN}'
HOSTILE = '<script>alert("&")</script>'


def make_record(task, method, lenience, example, gamma=2, **changes):
  """An answer of three tokens: a draft, then the other model's, then the end.

  Quality falls and acceptance grows with the lenience.
  """
  fields = dict(
    task=task,
    lenience=lenience,
    id=str(example),
    text='<a>\n b',
    quality=float(example % 4 > 0),
    wall_s=0.5,
  )
  if method in reference_points.BASELINES:
    return answers.make_alone(method, **fields | changes)
  fields |= dict(quality=float(example % 4 > lenience))
  fields |= dict(method=method, gamma=gamma, verifier_tokens=2 * (gamma + 1))
  return answers.make_record(**fields | changes)


def make_records(tasks=('sums', 'words'), methods=tuple(LENIENCES), **changes):
  return [
    make_record(task, method, lenience, example, **changes)
    for task in tasks
    for method in methods
    for lenience in LENIENCES.get(method, [0.5])
    for example in range(8)
  ]


def make_workdir(path, lines=None, config=None, reference=HOSTILE):
  lines = make_records() if lines is None else lines
  records.write(path / 'records' / 'all.jsonl', lines)
  trace = answers.make_trace(
    tokens=[5, 6, 1],
    token_strings=['<a>\n', ' b', ''],
    deferred=[0, 1, 0],
    logprobs=[-0.1, -0.2, -0.3],
  )
  records.write(
    path / 'traces' / 'all.jsonl.gz',
    [dataclasses.replace(trace, id=line.id) for line in lines],
  )
  for task in {line.task for line in lines}:
    asked = [
      tasks.Example(id=i, prompt=f'{HOSTILE} and {i}', reference=reference)
      for i in sorted({line.id for line in lines})
    ]
    records.write(path / 'examples' / f'{task}.jsonl', asked)
  rows = [*lines, *metrics.without_speculation(lines)]
  metrics.summarize(rows, COSTS).to_csv(path / 'summary.csv', index=False)
  costs = unit_costs.CostMeasurements((unit_costs.CostRange(COSTS, COSTS),))
  (path / 'costs.json').write_text(costs.to_json())
  known = {x.task: tasks.quality_metric(x.task) for x in lines}
  scales = {k: dict(scale=m.scale if m else 1.0) for k, m in known.items()}
  config = {'data': scales} | (config or {})
  (path / 'config.json').write_text(json.dumps(config))
  return path


def read_page(workdir, **options):
  return report_of(workdir, **options).read_text(encoding='utf-8')


def before_analysis(page):
  """Returns the page up to the first analysis section."""
  return page.split('<section class="analysis"')[0]


class Page(html.parser.HTMLParser):
  """Tags, attributes and text of a page; insists that tags match."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.attributes, self.texts, self._open = [], [], [], []
    self.handle_data = self.texts.append
    self.feed(text)
    self.close()
    assert not self._open

  def handle_starttag(self, tag, attrs):
    self.handle_startendtag(tag, attrs)
    if tag != 'meta':
      self._open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes.extend(attrs)

  def handle_endtag(self, tag):
    assert self._open.pop() == tag

  def values(self, name):
    return [value for key, value in self.attributes if key == name]


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  config = dict(name='three <methods>', drafter='small', verifier='large')
  config |= dict(methods=list(LENIENCES), versions={'jax': '9.9.9'})
  return make_workdir(tmp_path_factory.mktemp('run'), config=config)


@pytest.fixture(scope='module')
def page(workdir):
  return write_report(workdir).read_text(encoding='utf-8')


def test_page_needs_nothing_else_and_escapes_texts(page):
  parsed = Page(page)
  assert not re.search('https?:|@import', page)
  assert not {'link', 'img', 'iframe', 'object'} & set(parsed.tags)
  assert not parsed.values('src')
  # References inside the page, each to something that is there, once.
  ids = parsed.values('id')
  assert len(ids) == len(set(ids))
  inner = parsed.values('href') + re.findall(r'url\((#[^)]*)\)', page)
  assert inner
  assert {h[1:] for h in inner} <= set(ids)
  assert HOSTILE not in page
  assert parsed.tags.count('script') == 1
  assert any(HOSTILE in text for text in parsed.texts)
  assert 'three <methods>' in parsed.texts
  # Every colour of a plot is the page's.
  assert '#0a0b' not in page
  assert '#0a0c' not in page
  used = set(re.findall(r'var\((--[\w-]+)\)', page))
  light, dark = page.split('prefers-color-scheme: dark', 1)
  for part in (light, dark):
    assert used <= set(re.findall(r'(--[\w-]+):', part))
  # Figures on paper have those of a light page.
  for placeholder, variable in drawings._VARIABLES.items():
    assert f'{variable}: {drawings._PAPER[placeholder]};' in light


def test_page_has_plots_and_a_row_for_each_point_and_says_what_was_run(page):
  assert 'small drafts for large · 8 examples per task · gamma 2 · te' in page
  assert 'verifier token\n10 ms; drafter token\n1 ms' in page
  assert 'block of 2 drafts 12 ms' in page
  assert 'jax 9.9.9' in page
  whole, page = page, before_analysis(page)
  # Four of each task, and the first.
  assert page.count('role="img"') == 4 * 2 + 1
  rows = re.findall(r'<tr><th scope="row" data-key', page)
  assert len(rows) == 2 * sum(map(len, LENIENCES.values()))
  assert f'<td data-key="-Infinity">{MINUS}∞</td>' in page
  assert '<td data-key="Infinity">∞</td>' in page
  for method in LENIENCES:
    assert page.count(f'data-method="{method}"') >= 2 * 2
  # Markers say what they are.
  assert f'<title>OPT, lenience {MINUS}∞\n' in page
  assert '<title>Verifier alone\n' in page
  # Tokens keep whitespace and source.
  title = 'title="accepted draft, token 5"'
  assert f'<span class="t draft" {title}>&lt;a&gt;↵\n</span>' in whole
  assert re.search(r'<span class="t residual" title="[^"]+"> b</span>', whole)
  assert re.search(r'<span class="t bonus" title="[^"]+">\[end\]</span>', whole)


def test_examples_are_of_a_middling_lenience_and_of_every_task():
  choose = example_selection.choose_records
  chosen = choose(make_records())
  assert [r.task for r in chosen] == ['sums', 'words', 'sums', 'words', 'sums']
  assert {(r.method, r.lenience) for r in chosen} == {('token_v3', 0.25)}
  other = choose(make_records(methods=['verifier_only', 'opt']))
  assert {(r.method, r.lenience) for r in other} == {('opt', 0.0)}
  assert not choose(make_records(methods=['verifier_only']))


def test_beside_an_answer_stands_the_strict_one_or_the_verifiers_own():
  lines = make_records(['sums'])
  one = next(r for r in lines if (r.method, r.lenience) == ('opt', 0.0))
  find = example_selection.find_counterpart
  alone = find(lines, one)
  assert (alone.method, alone.id) == ('verifier_only', one.id)
  failed = dataclasses.replace(alone, failure='too long')
  assert find([one, failed], one) is None
  strict = [
    make_record('sums', 'speed', lenience, int(one.id), **changes)
    for lenience, changes in (
      (0.5, {}),
      (0.0, {'verification': 'block'}),
      (0.0, {'temperature': 0.5}),
      (0.0, {'gamma': 4}),
      (0.0, {}),
    )
  ]
  assert find(lines + strict[:3], one) is alone
  assert find(lines + strict[:4], one) is strict[3]
  assert find(lines + strict, one) is strict[4]
  # Nothing stands beside itself.
  assert find(lines + strict, strict[4]) is strict[3]
  assert find([one, strict[4]], strict[4]) is None


@pytest.fixture(scope='module')
def two_gammas(tmp_path_factory):
  # Opt is faster at gamma 4, token_v3 at gamma 2; others have one.
  lines = make_records(['sums'])
  for method, changes in (
    ('opt', dict(gamma=4, drafter_calls=0)),
    ('token_v3', dict(gamma=4, drafter_calls=30)),
    ('sequence_mean', dict(gamma=0, quality=0.0)),
    ('chow', dict(verification='sequential', wall_s=math.nan)),
  ):
    lines += make_records(['sums'], [method], **changes)
  return read_page(make_workdir(tmp_path_factory.mktemp('two'), lines))


def parts_of(page):
  """The sections by their title; the first screen has none."""
  parts = re.findall('<section.*?</section>', page, re.DOTALL)
  parts = [part for part in parts if 'class="first"' not in part]
  return {re.search('<h2>(.*?)</h2>', part)[1]: part for part in parts}


def cells_of(part, heading):
  """(method, text) of each row of a part's table."""
  head = re.findall('<th scope="col".*?<button type="button">(.*?)<', part)
  row = r'<tr><th scope="row" data-key="(.*?)">.*?</th>(.*?)</tr>'
  place = head.index(heading) - 1
  return [
    (name, re.findall('<td data-key=".*?">(.*?)</td>', cells)[place])
    for name, cells in re.findall(row, part)
  ]


def test_several_gammas_are_tuned_first_and_alone_below(two_gammas, page):
  Page(two_gammas)
  parts = parts_of(two_gammas)
  own = ['sums, gamma tuned', 'sums, gamma 2', 'sums, gamma 4']
  assert list(parts)[:3] == own
  # What is below is folded away, and no part of the section above it.
  tuned, below = two_gammas.split('<details>', 1)
  assert f'<h2>{own[0]}</h2>' in tuned
  assert tuned.rstrip().endswith('</section>')
  assert f'<h2>{own[2]}</h2>' in below.split('</details>')[0]
  for title in own:
    assert '>Verifier alone</span>' in parts[title]
    assert 'SeqCascade, mean q' in parts[title]
    # Chow asks no verifier: no oracle.
    assert 'Chow (sequential)</' in parts[title]
  # The table has the gamma of each point.
  dash = '\N{EN DASH}'
  assert cells_of(parts[own[0]], 'Gamma') == [
    ('Verifier alone', dash),
    ('Drafter alone', dash),
    *[('OPT', '4')] * 3,
    *[('TokenV3', '2')] * 3,
    ('SeqCascade, mean q', dash),
    ('Chow (sequential)', dash),
  ]
  assert '>Gamma</button>' not in parts[own[1]]
  # So has the best point, with how it was chosen.
  best = f'OPT, lenience {MINUS}∞, gamma 4; the difference in quality is shown'
  assert f'{best} to be above {MINUS}0.03 of the best score' in parts[own[0]]
  assert 'made it fastest on these same\n' not in parts[own[1]]
  assert f'OPT, lenience {MINUS}∞; the difference' in parts[own[2]]
  # Where there is one gamma it is not spoken of.
  assert list(parts_of(page))[:2] == ['sums', 'words']
  for words in ('each gamma separately', '>Gamma</button>', ', gamma'):
    assert words not in page


def test_variants_are_curves_of_their_own(tmp_path):
  changes = [{}, {'verification': 'block'}, {'bonus_from': 'verifier'}]
  changes.append({'gate': 'processed'})
  changes.append({'verification': 'sequential', 'wall_s': math.nan})
  lines = make_records(['sums'], ['verifier_only', 'drafter_only'])
  for change in changes:
    lines += make_records(['sums'], ['token_v3'], **change)
  text = read_page(make_workdir(tmp_path, lines))
  Page(text)
  legend = re.search('<ul class="legend">.*?</ul>', text)[0]
  assert re.findall('</svg> TokenV3(.*?)</li>', legend) == [
    *('', ' (block)', ' (bonus verifier)', ' (gate processed)'),
    ' (sequential oracle)',
  ]
  assert 'where it defers: a bound, not a method that can be run.' in text
  keys = re.findall('<li data-key="(.*?)">', legend)
  assert keys[2:4] == ['token_v3', 'token_v3 block']
  assert set(re.findall('data-method="(.*?)"', text)) == set(keys)
  # What is lifted out is never one of the models alone.
  assert ':not(.on, [data-method=verifier_only],' in text


def test_every_method_has_a_look_of_its_own_and_variants_are_hollow():
  known = [*methods.METHODS, *sequence.CONFIDENCES]
  assert not set(known) - set(styles._BUILT_IN)
  names = [*known, 'mine', 'yours', 'theirs', 'ours']
  table = styles.styles({name: name for name in names})
  assert list(table) == names
  for looks in ('label', 'variable', 'placeholder'):
    assert len({getattr(s, looks) for s in table.values()}) == len(names), looks
  # The two models alone share a colour.
  for colours in ('light', 'dark'):
    assert len({getattr(s, colours) for s in table.values()}) == len(names) - 1
  assert len({drawings.marker(s) for s in table.values()}) == len(names)
  variants = 'chow|chow block|mine|mine block'.split('|')
  chow, block, mine, my_block = styles.styles(
    {name: name.split()[0] for name in variants}
  ).values()
  assert (chow.light, chow.marker) == (block.light, block.marker)
  assert (mine.light, block.dashes) == (my_block.light, my_block.dashes)
  assert chow.dashes != block.dashes
  assert 'fill="var(--card)"' in drawings.marker(block)
  assert 'fill="var(--card)"' not in drawings.marker(chow)


@pytest.mark.parametrize(
  ('name', 'text', 'said'),
  [
    ('records', None, r'records.*; run experiments\.sweep'),
    ('summary.csv', None, r'summary\.csv.*; run experiments\.sweep'),
    ('costs.json', None, r'costs\.json.*; run experiments\.sweep'),
    ('summary.csv', '', 'summary'),
    ('summary.csv', 'task,method\n', 'summary'),
    ('costs.json', '{}', 'costs'),
    ('config.json', '{', 'config'),
    ('config.json', '[]', 'config'),
    ('config.json', '{}', 'have the scale of the metric of sums'),
  ],
)
def test_missing_and_damaged_pieces_are_named(tmp_path, name, text, said):
  make_workdir(tmp_path, make_records(['sums'], ['opt']))
  if text is None:
    (tmp_path / name).rename(tmp_path / 'elsewhere')
  else:
    (tmp_path / name).write_text(text)
  with pytest.raises(ValueError, match=said):
    write_report(tmp_path)
  assert not (tmp_path / 'report').exists()


def test_launcher_rebuilds_the_page_or_shows_why(workdir, page, tmp_path):
  path = workdir / 'report' / 'index.html'
  path.unlink(missing_ok=True)
  shutil.rmtree(path.parent / 'figures', ignore_errors=True)
  flags = f'--workdir={workdir}', '--nofigures'
  done = launching.run('experiments.report', *flags)
  assert not (path.parent / 'figures').exists()
  assert (done.returncode, done.stderr) == (0, 'drawing the page\n')
  assert done.stdout == f'{path}\n'
  assert path.read_text(encoding='utf-8') == page
  done = launching.run('experiments.report', f'--workdir={tmp_path}', '--debug')
  assert done.returncode not in (0, 2)
  assert 'Traceback' in done.stderr
  assert 'has no records; run' in done.stderr


def test_a_task_without_quality_is_shown_by_its_speed(tmp_path):
  lines = make_records(tasks=('speed',), quality=math.nan, scores={})
  text = read_page(make_workdir(tmp_path, lines, reference=('<one>', 'two')))
  # Of several references each has a line.
  assert '&lt;one&gt;\ntwo</dd>' in text
  assert 'measures speed only' in text
  assert 'right</span>' not in text
  assert 'Fastest at the verifier' not in text
  assert 'class="interval"' not in before_analysis(text)
  assert 'modelled latency per token (verifier alone = 1) against' in text
  assert 'quality against' not in text


# --- The first screen.


def first_of(text):
  """Its sentences, and its figure."""
  part = re.search('<section class="first">.*?</section>', text, re.DOTALL)[0]
  return [
    html.unescape(one)
    for one in re.findall('<ol.*?</ol>', part)[0][8:-10].split('</li><li>')
  ], part


def test_the_first_screen_answers_three_questions(tmp_path):
  drawn = 'verifier_only', 'drafter_only', 'speed', 'token_v3'
  # A block for each answer.
  block = dict(verifier_calls=1, verifier_tokens=3)
  lines = [
    dataclasses.replace(line, **block) if line.gamma else line
    for line in graded_records(drawn)
  ]
  text = read_page(make_workdir(tmp_path, lines))
  (fastest, best, above), part = first_of(text)
  assert fastest.startswith("At the verifier's quality, ")
  assert ' is fastest: 1.' in fastest
  assert 'differs by 0.000 (\u22120.019 to +0.019)' in fastest
  assert best.startswith("Within the verifier's latency, ")
  assert 'quality 0.900' in best
  assert above.startswith('No method is shown to be better than both models')
  # Both models and all curves are in one frame, from 0 on.
  assert part.count('role="img"') == 1
  for variant in drawn:
    assert f'data-method="{variant}"' in part
  assert '→' not in part
  assert '←' not in part
  assert part.index('<figure>') < part.index('<ol>')


@pytest.mark.parametrize(
  ('scale', 'best', 'loss', 'is_good'),
  # The best score of float32 is above 1; some of chrF are all below 1.
  [(1.0, 1.0000001192092896, 0.2, False), (100.0, 0.9, 0.1, True)],
)
def test_a_margin_is_a_share_of_the_scale_of_the_metric(
  tmp_path, scale, best, loss, is_good
):
  lines = [
    graded(method, lenience, i, quality=best * (i % 4 > 0) - lost)
    for method, lenience, lost in (
      ('verifier_only', math.nan, 0.0),
      ('token_v3', 0.5, loss),
    )
    for i in range(400)
  ]
  config = {'data': {'sums': {'scale': scale}}}
  workdir = make_workdir(tmp_path, lines, config)
  points = runs.gather([runs.read(workdir)])
  frame = comparisons.compare(points, AnalysisConfig(resamples=9))
  assert frame.as_good.tolist() == [True, is_good]


def test_what_the_verifier_cannot_do_is_said_first(tmp_path):
  lines = [
    dataclasses.replace(line, quality=0.0)
    for line in graded_records(('verifier_only', 'speed', 'token_v3'))
  ]
  workdir = make_workdir(tmp_path, lines)
  run = runs.read(workdir)
  best = slices.best_points(run.summary, runs.gather([run]))
  # Strict decoding has its law, and the others could lose nothing.
  assert best.at_quality.tolist() == [True, True, False]
  text = 'sums: the verifier scores 0.00 on 200 examples; look at the prompts'
  assert text in before_analysis(read_page(workdir))


def test_strict_decoding_is_what_the_fastest_is_seen_beside(tmp_path):
  lines = graded_records(('verifier_only', 'drafter_only'))
  strict = [graded('speed', 0.0, i) for i in range(200)]
  # As good as strict, in fewer calls.
  fewer = dict(lenience=0.5, verifier_calls=2, verifier_tokens=6)
  lines += strict + [dataclasses.replace(x, **fewer) for x in strict]
  (fastest, *_), _ = first_of(read_page(make_workdir(tmp_path, lines)))
  assert 'Speculative decoding at lenience 0.5 is fastest' in fastest
  assert 'Strict speculative decoding, which is lossless, is' in fastest
  one, other = re.findall(r'([0-9.]+) times', fastest)
  assert float(one) > float(other)


def test_the_tile_is_of_the_point_that_the_first_sentence_names(tmp_path):
  lines = graded_records(('verifier_only', 'drafter_only', 'speed'))
  # As good on average, in fewer calls; but other answers are right.
  fewer = dict(verifier_calls=1, verifier_tokens=3, deferred=1)
  for i in range(200):
    fewer['quality'] = graded('speed', 0.0, 199 - i).quality
    lines.append(graded('rule_of_mine', 0.5, i, **fewer))
  text = read_page(make_workdir(tmp_path / 'both', lines))
  (fastest, *_), _ = first_of(text)
  tile = re.search('Fastest at the verifier.*?</small>', text)[0]
  assert 'Speculative decoding at lenience 0 is fastest' in fastest
  assert '<small>Speculative decoding, lenience 0; ' in tile
  sums = parts_of(text)['sums']
  heading = 'Difference from the verifier'
  assert dict(cells_of(sums, heading))['Verifier alone'].startswith('0.000')
  # No workdir says what the rule is, but its answers have deferrals.
  kinds = (tmp_path / 'both/report/tables/kinds.csv').read_text()
  assert 'speculative cascade' in kinds
  assert 'relaxed' not in kinds
  lines = [line for line in lines if line.method != 'speed']
  text = read_page(make_workdir(tmp_path / 'rule', lines))
  tile = re.search('Fastest at the verifier.*?</small>', text)[0]
  assert '<b>none</b><small>no difference in quality is shown to be' in tile


def test_the_first_screen_needs_the_models_alone(tmp_path):
  lines = graded_records(('verifier_only', 'opt'))
  (*_, above), _ = first_of(read_page(make_workdir(tmp_path / 'v', lines)))
  assert above.startswith('The drafter alone was not run')
  lines = graded_records(('drafter_only', 'opt'))
  assert 'class="first"' not in read_page(make_workdir(tmp_path / 'd', lines))


def test_long_tables_are_folded_and_the_contents_link_to_all_sections(tmp_path):
  drawn = 'verifier_only', 'opt', 'token_v3', 'diff', 'chow', 'token_v1'
  text = read_page(make_workdir(tmp_path, graded_records(drawn)))
  for part in re.split('<details>.*?</details>', text, flags=re.DOTALL):
    for table in re.findall('<tbody>.*?</tbody>', part, re.DOTALL):
      assert table.count('<tr>') <= 10
  links = re.findall('<a href="#(.*?)">(.*?)</a>', text)
  titles = [html.unescape(title) for _, title in links]
  assert titles == list(parts_of(text))[:-1]
  for anchor, _ in links:
    assert text.count(f'id="{anchor}"') == 1


@pytest.mark.parametrize('block', [1.05, 1.5])
def test_costs_that_changed_are_spoken_of(tmp_path, block):
  workdir = make_workdir(tmp_path, make_records(['sums']))
  verify_s = {k: s * block for k, s in COSTS.verify_s.items()}
  later = dataclasses.replace(COSTS, verify_s=verify_s)
  times = tuple(unit_costs.CostRange(c, c) for c in (COSTS, later))
  costs = unit_costs.CostMeasurements(times)
  (workdir / 'costs.json').write_text(costs.to_json())
  for words in ('Unit costs changed', '1.50 times as long at the end'):
    assert (words in read_page(workdir)) == (block == 1.5)


# --- The analysis sections.


def graded(method, lenience, example, **changes):
  """An answer that is right less often the more lenient it is."""
  alone = method in reference_points.BASELINES
  level = 0.9 if method == 'verifier_only' else 0.9 - 0.4 * max(0, lenience)
  if method == 'drafter_only':
    level = 0.5
  calls = 2 if lenience > 0.5 else 3
  own = {} if alone else {'verifier_calls': calls, 'verifier_tokens': 3 * calls}
  return make_record(
    'sums',
    method,
    lenience,
    example,
    **{'quality': float((example * 37) % 100 < 100 * level)} | own | changes,
  )


def graded_records(methods=('verifier_only', 'opt', 'token_v3'), **changes):
  leniences = {'verifier_only': [math.nan], 'drafter_only': [math.nan]}
  return [
    graded(method, lenience, example, **changes)
    for method in methods
    for lenience in leniences.get(method, [0.0, 0.4, 1.0])
    for example in range(200)
  ]


def report_of(workdir, **options):
  config = AnalysisConfig(resamples=100)
  return write_report(workdir, config, figures=False, **options)


def csv(page, name):
  return pd.read_csv(page.parent / 'tables' / f'{name}.csv')


@pytest.fixture(scope='module')
def graded_page(tmp_path_factory):
  return report_of(make_workdir(tmp_path_factory.mktemp('g'), graded_records()))


def test_every_section_is_on_the_page_and_its_tables_are_files(graded_page):
  path = graded_page
  parts = parts_of(path.read_text(encoding='utf-8'))
  assert list(parts)[1:-1] == [
    'Speed at equal quality, quality at equal speed',
    'Comparison with simpler decoding',
    'Pareto front',
    'Gain over both models',
  ]
  table = csv(path, 'two_sided_modelled').set_index('variant')
  cells = dict(reversed(cells_of(parts[list(parts)[1]], 'Modelled speed-up')))
  for label, variant in (('OPT', 'opt'), ('TokenV3', 'token_v3')):
    number = f'{table.speedup[variant]:.2f}'
    assert cells[label].startswith(number)
    text = (path.parent / 'tables/two_sided_modelled.md').read_text()
    row = next(line for line in text.splitlines() if label in line)
    assert number in row
  kinds = (path.parent / 'tables/kinds.md').read_text().splitlines()
  assert kinds[2].startswith('| Kind | Task | Fastest |')
  assert kinds[2].endswith('| Quality difference | Best: modelled speed-up |')
  kinds = tables.Table('kinds', 'Kinds', pd.DataFrame(), [], row_heading='<K>')
  assert '&lt;K&gt;</button>' in tables.interactive(kinds, {})
  told = json.loads((path.parent / 'report.json').read_text())
  assert (told['resamples'], told['seed'], told['allowed']) == (100, 0, [])
  # The numbers are the summary's.
  run = runs.read(path.parents[1])
  rates = comparisons.rates(runs.gather([run]))
  rates['relative_latency'] = rates.latency
  for column in ('quality', 'relative_latency', 'mean_output_tokens'):
    want = pytest.approx(run.summary[column].tolist(), nan_ok=True)
    assert rates[column].tolist() == want


def test_the_clock_is_compared_where_arms_took_turns(tmp_path, graded_page):
  title = 'Measured and modelled speed-ups'
  assert title not in graded_page.read_text()
  workdir = make_workdir(tmp_path, graded_records())
  # Twice as fast on the clock as the verifier alone, whatever the model says.
  entrants = ('verifier_only', math.nan, 0.2), ('opt', 0.0, 0.1)
  timed = [
    graded(method, lenience, example, wall_s=seconds)
    for method, lenience, seconds in entrants
    for example in range(10)
  ]
  records.write(workdir / 'race.jsonl', timed)
  path = report_of(workdir)
  part = parts_of(path.read_text(encoding='utf-8'))[title]
  table = csv(path, 'race').set_index('variant')
  assert table.index.tolist() == ['opt']
  row = table.loc['opt']
  emitted = timed[-1].emitted / timed[0].emitted
  assert row.wall_speedup == pytest.approx(2 * emitted)
  assert row.by_model == pytest.approx(row.speedup / row.wall_speedup)
  assert row.n == 10
  cells = dict(cells_of(part, 'Measured speed-up'))
  assert f'{row.wall_speedup:.2f}' in cells['OPT']


def test_a_further_section_is_a_function_on_the_list(tmp_path, monkeypatch):
  def failures(context):
    shown = [*context.group_columns]
    shown.append(columns.Column('failed', 'Failed', str, 'of all'))
    table = tables.Table('failures', 'Failures', context.points.table, shown)
    return sections.Section('Failed examples', 'At each point.', [table])

  monkeypatch.setattr(sections, 'SECTIONS', [failures, lambda context: None])
  path = report_of(make_workdir(tmp_path, graded_records()))
  parts = parts_of(path.read_text(encoding='utf-8'))
  assert list(parts)[1:-1] == ['Failed examples']
  assert dict(cells_of(parts['Failed examples'], 'Failed'))['OPT'] == '0'
  assert set(csv(path, 'failures').failed) == {0}
  suffixes = {p.suffix for p in (path.parent / 'tables').iterdir()}
  assert suffixes == {'.csv', '.md'}


@pytest.mark.slow
def test_figures_are_files_without_the_pages_colours(tmp_path):
  path = write_report(
    make_workdir(tmp_path, graded_records()), AnalysisConfig(resamples=100)
  )
  drawn = sorted(p.name for p in (path.parent / 'figures').iterdir())
  names = {name.rpartition('.')[0] for name in drawn}
  assert {'pareto-sums', 'first', 'p0-panels'} <= names
  assert drawn == sorted(f'{n}.{s}' for n in names for s in ('png', 'svg'))
  for name in names:
    text = (path.parent / f'figures/{name}.svg').read_text()
    assert 'var(' not in text
    assert '#0a0' not in text
    assert xml.etree.ElementTree.fromstring(text).tag.endswith('svg')
  name = 'figures/p0-relative_latency-quality.png'
  image = matplotlib.image.imread(path.parent / name)
  pixels = (image[..., :3] * 255).round().astype(int).reshape(-1, 3)
  found = set(map(tuple, pixels.tolist()))
  # TokenV3's own colour on a light page.
  assert (0xCF, 0x4A, 0x00) in found
  # Nothing is left in the colour that stood for another.
  assert not any(c[0] == 10 and c[1] in (11, 12) and c[2] < 16 for c in found)


CONFIG = {
  'verifier': 'large',
  'drafter': 'small',
  'seed': 0,
  'batch_size': 8,
  'task': {'shots': 8, 'max_new_tokens': 64},
  'file': {'stop_strings': ['.']},
  'chat': False,
}


def two(tmp_path, lines=None, reference=HOSTILE, **changes):
  one = make_workdir(tmp_path / 'one', graded_records(), CONFIG)
  lines = graded_records(['verifier_only', 'diff']) if lines is None else lines
  second = tmp_path / 'two'
  return [one, make_workdir(second, lines, CONFIG | changes, reference)]


def test_workdirs_of_the_same_settings_are_one_page(tmp_path):
  workdirs = two(tmp_path, batch_size=1)
  with pytest.raises(ValueError, match='allow: must name settings, got colour'):
    report_of(workdirs, allow=['colour'])
  with pytest.raises(ValueError, match='named twice'):
    report_of([workdirs[0], workdirs[0]])
  path = report_of(workdirs)
  assert path == tmp_path / 'one/report/with-two/index.html'
  text = path.read_text(encoding='utf-8')
  assert next(iter(parts_of(text))) == 'sums'
  assert 'class="notice"' not in text
  table = csv(path, 'two_sided_modelled')
  assert set(table.variant) == {'opt', 'token_v3', 'diff'}
  # The curves of both are drawn together.
  front = parts_of(text)['Pareto front']
  assert set(table.variant) < set(re.findall('data-method="(.*?)"', front))


@pytest.mark.slow
def test_the_same_points_of_two_runs_are_told_apart(tmp_path):
  path = report_of(two(tmp_path, graded_records(), batch_size=1))
  titles = list(parts_of(path.read_text(encoding='utf-8')))
  assert titles[:2] == ['sums, one', 'sums, two']
  table = csv(path, 'two_sided_modelled')
  assert sorted(table.run) == ['one', 'one', 'two', 'two']


@pytest.mark.parametrize(
  ('field', 'changes'),
  [
    ('prompts', {'reference': 'another'}),
    ('data', {'data': {'sums': {'hash': 'x'}}}),
    ('seed', {'seed': 1}),
    ('temperature', {'lines': {'temperature': 0.5}}),
    ('truncation', {'top_p': 0.9}),
    ('weights', {'drafter': 'tiny'}),
    ('max_new_tokens', {'task': {'shots': 8, 'max_new_tokens': 32}}),
    ('shots', {'task': {'shots': 0, 'max_new_tokens': 64}}),
    ('chat', {'chat': True}),
    ('stop_strings', {'file': {'stop_strings': []}}),
  ],
)
def test_workdirs_of_other_settings_are_refused(tmp_path, field, changes):
  if 'lines' in changes:
    lines = graded_records(['verifier_only', 'diff'], **changes['lines'])
    changes = {'lines': lines}
  workdirs = two(tmp_path, **changes)
  if field == 'data':
    config = CONFIG | {'data': {'sums': {'hash': 'y'}}}
    (workdirs[0] / 'config.json').write_text(json.dumps(config))
  read = list(map(runs.read, workdirs))
  with pytest.raises(ValueError, match=rf'differ in {field}; .*allow={field}'):
    runs.check(read)
  assert runs.check(read, [field]) == [field]


@pytest.mark.slow
def test_what_may_differ_stands_on_the_page_and_at_every_table(tmp_path):
  field = 'max_new_tokens'
  workdirs = two(tmp_path, task={'shots': 8, 'max_new_tokens': 32})
  with pytest.raises(ValueError, match=f'differ in {field};'):
    report_of(workdirs)
  assert not (workdirs[0] / 'report').exists()
  path = report_of(workdirs, allow=[field])
  said = f'These runs differ in {field}, which was allowed.'
  page = path.read_text(encoding='utf-8')
  titles = re.findall('<h3>.*?</h3>\n(.*)', page)
  assert titles
  assert {f'<p class="notice">{said}</p>'} == set(titles)
  assert page.count(said) == 1 + len(titles)
  for table in (path.parent / 'tables').iterdir():
    text = table.read_text()
    assert said in text or text.count('\n') <= 1, table


def test_weights_are_told_by_their_hashes(tmp_path):
  workdirs = two(tmp_path, verifier='elsewhere/large')
  for workdir, drafter in zip(workdirs, 'ab', strict=True):
    start = {'verifier': '1', 'drafter': drafter, 'tokenizer': '3'}
    (workdir / 'provenance.json').write_text(json.dumps({'starts': [start]}))
  with pytest.raises(ValueError, match='differ in weights;'):
    runs.check(list(map(runs.read, workdirs)))
  (workdirs[1] / 'provenance.json').write_text(
    (workdirs[0] / 'provenance.json').read_text()
  )
  assert not runs.check(list(map(runs.read, workdirs)))


@pytest.mark.slow
@pytest.mark.parametrize(
  'lines',
  [
    make_records(['sums'], ['opt']),
    make_records(['sums'], ['drafter_only']),
    make_records(['sums'], ['my $_$ <rule>', 'a:"b"']),
    graded_records(['opt', 'token_v3']),
    graded_records(['verifier_only']),
    [r for r in graded_records() if r.lenience != 0.4 and r.lenience != 1],
    graded_records(quality=math.nan),
    [r for r in graded_records() if r.id == '0'],
    [
      dataclasses.replace(r, quality=math.nan) if r.id == '3' else r
      for r in graded_records()
    ],
  ],
  ids=(
    'one method|drafter alone|odd names|no verifier|verifier alone'
    '|single lenience|no quality|one example|an unknown quality'
  ).split('|'),
)
def test_odd_runs_make_a_page(tmp_path, lines):
  text = report_of(make_workdir(tmp_path, lines)).read_text(encoding='utf-8')
  Page(text)
  assert '>nan<' not in text


def test_a_run_in_which_all_failed_makes_a_page(tmp_path):
  path = make_workdir(tmp_path, graded_records())
  failed = [answers.make_failure(r, 'it did not fit') for r in graded_records()]
  lines, traces = zip(*failed, strict=True)
  records.write(path / 'records/all.jsonl', lines)
  records.write(path / 'traces/all.jsonl.gz', traces)
  summary = metrics.summarize([*lines], COSTS)
  summary.to_csv(path / 'summary.csv', index=False)
  Page(report_of(path).read_text(encoding='utf-8'))


def test_examples_of_two_tasks_are_timed_apart_though_their_ids_are_equal():
  timed = [
    dataclasses.replace(graded(method, lenience, example), task=task)
    for task in ('sums', 'names')
    for method, lenience in (('verifier_only', math.nan), ('opt', 0.0))
    for example in range(3)
  ]
  costs = unit_costs.CostMeasurements((unit_costs.CostRange(COSTS, COSTS),))
  path = pathlib.Path('run')
  run = runs.Run(path, {}, {}, costs, pd.DataFrame(), {}, race=timed)
  frame = race.compare(race.timed_points(run), AnalysisConfig(resamples=100))
  assert frame.n.tolist() == [6]
  assert len(comparisons.matrices(race.timed_points(run), [0])['id']) == 6


# --- Two points that the command line names, compared.

_NAMED = AnalysisConfig(resamples=100)


@pytest.fixture(scope='module')
def named(tmp_path_factory):
  lines = make_records(['sums'], ['verifier_only', 'opt'])
  lines += make_records(['sums'], ['chow'], deferrals=2, last_deferral=2)
  lines += make_records(['sums'], ['opt'], gamma=4)
  # Of a curve of fewer examples, which the two points are not limited to.
  lines += make_records(['sums'], ['diff'])[:3]
  return make_workdir(tmp_path_factory.mktemp('run'), lines)


def test_the_difference_is_that_of_all_examples_of_both(named):
  run = runs.read(named)
  (said,) = named_points.compare([run], ['opt@inf@4', 'chow@0.5'], _NAMED)
  assert runs.gather([run]).table.n.max() == 3
  lines = [x for x in run.records['all'] if x.method != 'diff']
  points = runs.gather([dataclasses.replace(run, records={'all': lines})])
  table = points.table
  one = table[(table.lenience == math.inf) & (table.gamma == 4)].index[0]
  other = table[table.variant == 'chow'].index[0]
  wanted = comparisons.pair(points, one, other, _NAMED)
  assert wanted['n'] == 8
  assert wanted['gained'] != 0
  assert said == (
    'sums at temperature 1, 8 examples: opt@inf@4 is'
    f' {wanted["faster"]:.2f} [{wanted["faster_low"]:.2f},'
    f' {wanted["faster_high"]:.2f}] times as fast as chow@0.5@2, quality'
    f' gain {wanted["gained"]:+.3f} [{wanted["gained_low"]:+.3f},'
    f' {wanted["gained_high"]:+.3f}] (modelled latency, 95 %).'
  )


def test_a_sequential_cascade_has_no_gamma(named):
  names = ['chow sequential@0.5', 'chow@0.5']
  (said,) = named_points.compare([runs.read(named)], names, _NAMED)
  assert 'examples: chow sequential@0.5 is ' in said


def test_points_without_a_common_answer_are_not_compared(named):
  run = runs.read(named)
  lines = [
    dataclasses.replace(x, failure='score: no') if x.method == 'chow' else x
    for x in run.records['all']
  ]
  failed = dataclasses.replace(run, records={'all': lines})
  with pytest.raises(ValueError, match='compare: no task has'):
    named_points.compare([failed], ['chow@0.5@2', 'opt@inf@4'], _NAMED)


@pytest.mark.parametrize('other', ['opt@9', 'opt@0', 'chow@0.5'])
def test_what_is_not_a_point_is_refused(named, other):
  with pytest.raises(ValueError, match=r'of chow .*opt@0@2, opt@0@4'):
    named_points.compare([runs.read(named)], ['chow@0.5', other], _NAMED)


def test_the_command_prints_the_sentence(named):
  flags = f'--workdir={named}', '--compare=chow@0.5,verifier_only'
  done = launching.run('experiments.report', *flags)
  assert done.returncode == 0
  assert 'chow@0.5@2 is ' in done.stdout
  assert not (named / 'report').exists()
