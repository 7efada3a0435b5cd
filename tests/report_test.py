"""Tests of the page of a run and of the launcher that rebuilds it."""

import base64
import dataclasses
import gzip
import html
import json
import math
import re
import shutil

import answers
import launching
import pandas as pd
import pytest
from answers import COSTS, measured

from cascades import files
from experiments import records, tasks
from experiments.analysis import comparisons, runs
from experiments.reports import AnalysisConfig, tables, write_report
from experiments.reports import answers as page_answers
from experiments.reports import page as report_page

LENIENCES = {x: [math.nan] for x in ('verifier_only', 'drafter_only')}
LENIENCES |= {'opt': [-math.inf, 0.0, math.inf], 'token_v3': [-1.0, 0.25, 1.0]}
MINUS = '\N{MINUS SIGN}'
HOSTILE = '<script>alert("&")</script>'
USUAL = AnalysisConfig(resamples=100)


def make_record(task, method, lenience, example, gamma=2, **changes):
  """An answer of three tokens: a draft, then the other model's, then the end.

  Quality falls and acceptance grows with the lenience.
  """
  fields = dict(task=task, lenience=lenience, id=str(example), text='<a>\n b')
  fields |= dict(quality=float(example % 4 > 0), wall_s=0.5)
  if method in runs.BASELINES:
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
  shown = dict(tokens=[5, 6, 1], token_strings=['<a>\n', ' b', ''])
  trace = answers.make_trace(deferred=[0, 1, 0], **shown)
  traces = [dataclasses.replace(trace, id=line.id) for line in lines]
  records.write(path / 'traces' / 'all.jsonl.gz', traces)
  for task in {line.task for line in lines}:
    asked = [
      tasks.Example(id=i, prompt=f'{HOSTILE} and {i}', reference=reference)
      for i in sorted({line.id for line in lines})
    ]
    records.write(path / 'examples' / f'{task}.jsonl', asked)
  costs = measured(COSTS)
  (path / 'costs.json').write_text(costs.model_dump_json())
  known = {x.task: tasks.quality_metric(x.task) for x in lines}
  scales = {k: dict(scale=m.scale if m else 1.0) for k, m in known.items()}
  config = {'data': scales} | (config or {})
  (path / 'config.json').write_text(json.dumps(config))
  return path


def report_of(workdir):
  return write_report(runs.read(workdir), USUAL)


def read_page(workdir):
  return report_of(workdir).read_text(encoding='utf-8')


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  config = dict(name='three <methods>', drafter='small', verifier='large')
  path = make_workdir(tmp_path_factory.mktemp('run'), config=config)
  starts = [dict(code='results version 9', versions={'jax': '9.9.9'})]
  (path / 'provenance.json').write_text(json.dumps({'starts': starts}))
  return path


@pytest.fixture(scope='module')
def page(workdir):
  return read_page(workdir)


def test_page_needs_nothing_else_and_escapes_texts(page):
  assert not re.search('https?:|@import|<(link|iframe|object|svg)', page)
  source, *_ = re.findall(' src="(.*?)"', page)
  kind, _, data = source.partition('base64,')
  assert kind == 'data:image/svg+xml;'
  assert b'Verifier alone' in base64.b64decode(data)
  # References inside the page, each to something that is there, once.
  ids = re.findall(' id="(.*?)"', page)
  assert len(ids) == len(set(ids))
  inner = re.findall(' href="(.*?)"', page)
  assert inner
  assert {h[1:] for h in inner} <= set(ids)
  assert HOSTILE not in page
  assert page.count('<script') == 1
  assert HOSTILE in html.unescape(page)
  assert '<h1>three &lt;methods&gt;</h1>' in page


def test_page_has_a_row_for_each_point_and_says_what_was_run(page):
  said = ' '.join(page.split())
  assert 'small drafts for large · 8 examples per task · gamma 2 · te' in said
  assert 'Verifier token 10 ms; drafter token 1 ms; verifier call on' in said
  assert 'block of 2 drafts 12 ms' in said
  assert 'Decoded with results version 9, jax 9.9.9.' in said
  rows = parts_of(page)['All points'].count('<tr><th scope="row" data-key')
  assert rows == 2 * sum(map(len, LENIENCES.values()))
  assert f'<td data-key="-inf">{MINUS}∞</td>' in page
  assert '<td data-key="inf">∞</td>' in page
  # Tokens keep whitespace and source.
  assert '<span class="t draft">&lt;a&gt;↵\n</span>' in page
  assert '<span class="t residual"> b</span>' in page
  assert '<span class="t bonus">[end]</span>' in page


def test_examples_are_of_a_middling_lenience_and_of_every_task():
  def chosen(**methods):
    lines = make_records(**methods)
    places = page_answers.select({'all': lines})
    return [lines[line] for _, line in places]

  ours = chosen()
  assert [r.task for r in ours] == ['sums', 'words', 'sums', 'words', 'sums']
  assert {(r.method, r.lenience) for r in ours} == {('token_v3', 0.25)}
  others = chosen(methods=['verifier_only', 'opt'])
  assert {(r.method, r.lenience) for r in others} == {('opt', 0.0)}
  assert not chosen(methods=['verifier_only'])


def parts_of(page):
  """The sections by their title."""
  parts = re.findall('<section.*?</section>', page, re.DOTALL)
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


def test_methods_have_looks_and_variants_are_dashed():
  table = tables.styles({x: x for x in ['speed', 'token_v3', 'mine', 'yours']})
  assert len({x.label for x in table.values()}) == len(table)
  assert len({x[1:] for x in table.values()}) == len(table)
  variants = 'diff', 'diff block', 'diff sequential', 'chow sequential'
  switches = (
    'entropy_gate-4 look_ahead:2 gate raw bonus verifier draft argmax',
    'typical',
  )
  table = tables.styles({x: x.split()[0] for x in (*variants, *switches)})
  assert [x.label for x in table.values()] == [
    *('Diff', 'Diff (block)', 'Diff (sequential oracle)', 'Chow (sequential)'),
    *('vllm_fly-4 (look_ahead:2)', 'typical'),
  ]
  assert len({x.line for x in table.values()}) == 3
  assert table['diff'][1:3] == table['diff block'][1:3]


@pytest.mark.parametrize(
  ('name', 'said'),
  [
    ('costs.json', r'costs\.json.*; run experiments\.sweep'),
    ('config.json', 'have the scale of the metric of sums'),
  ],
)
def test_missing_pieces_are_named(tmp_path, name, said):
  make_workdir(tmp_path, make_records(['sums'], ['opt']))
  (tmp_path / name).unlink()
  with pytest.raises(ValueError, match=said):
    report_of(tmp_path)
  assert not (tmp_path / 'report').exists()


def test_the_command_rebuilds_the_page_or_compares_two_points(workdir, page):
  path = workdir / 'report' / 'index.html'
  path.unlink()
  flags = f'--workdir={workdir}', '--resamples=100'
  done = launching.run('experiments.report', *flags)
  assert (done.returncode, done.stderr) == (0, 'drawing the page\n')
  assert done.stdout == f'{path}\n'
  assert path.read_text(encoding='utf-8') == page
  path.unlink()
  points = '--compare=token_v3@1,verifier_only'
  done = launching.run('experiments.report', *flags, points)
  assert done.returncode == 0
  # The verifier alone has no gamma.
  assert re.search(
    'sums at temperature 1, 8 examples: token_v3@1@2 is .* as verifier_only, ',
    done.stdout,
  )
  assert not path.exists()


def test_a_part_of_a_sweep_is_a_table_of_what_was_answered(tmp_path):
  lines = make_records(['sums'], ['\x1b[2J'])
  lines[0], _ = answers.make_failure(lines[0], 'it did not fit')
  make_workdir(tmp_path, lines, {'points': ['all', '\u202e']})
  done = launching.run('experiments.report', f'--workdir={tmp_path}')
  assert done.returncode == 4
  assert re.search(r'sums +\\x1b\[2J +2 +0.5 +7 +0.857', done.stdout)
  assert 'lacks 1 of 2 points' in done.stdout
  assert not any(map(files.is_invisible, done.stdout))


def test_what_fails_is_left_out_of_a_page_alone(tmp_path):
  workdir = make_workdir(tmp_path, make_records(['sums'], ['opt', 'chow']))
  asked = workdir / 'examples/sums.jsonl'
  records.write(asked, records.read(asked, tasks.Example)[1:])
  traced = workdir / 'traces/all.jsonl.gz'
  lines = gzip.decompress(traced.read_bytes()).splitlines(keepends=True)
  # Of an answer that is not shown, and of one that is.
  lines[0] = lines[9] = b'{}\n'
  traced.write_bytes(gzip.compress(b''.join(lines)))
  race = [make_record('sums', 'opt', 0.0, 0, drafts=3)]
  records.write(workdir / 'race.jsonl', race)
  text = read_page(workdir)
  assert text.count('<article') == 3
  race, example = re.findall('Left out: (.*?)<', text)
  assert race.startswith('the race cannot be made (ValueError: costs: drafts_s')
  # The first reason.
  assert 'there is no example 0' in example


def test_predicted_points_are_lines_beside_the_decoded(tmp_path):
  workdir = make_workdir(tmp_path, make_records(['sums'], ['opt']))
  row = dict(task='sums', method='opt', gamma=2, drafter_calls=2)
  row |= dict(tokens_per_call=2, low=1, high=3)
  rows = [row | dict(lenience=x, total_variation=x) for x in (0.0, 0.5)]
  path = workdir / 'corrected.csv'
  pd.DataFrame(rows).to_csv(path, index=False)
  path.with_stem('predicted').write_text('task\nsums\n')
  run = runs.read(workdir)
  frame = comparisons.compare(runs.gather(run), USUAL)
  drawn = report_page._predicted(run, frame)
  # The page's unit costs: two calls of the drafter, and a block of two.
  assert drawn.speedup.tolist()[:2] == pytest.approx(
    [2 * 10 / (2 * 1 + 12)] * 2
  )
  assert drawn.tokens_per_call.isna().tolist() == [False, False, True]
  assert drawn.total_variation.iloc[-1] == drawn.lenience.iloc[-1] == 0
  assert 'lines are predicted: both models read answers' in read_page(workdir)
  assert (workdir / 'report/figures/prediction.svg').exists()
  path.unlink()
  assert 'Left out: the prediction cannot be made' in read_page(workdir)


def test_a_task_without_quality_is_shown_by_its_speed(tmp_path):
  lines = make_records(tasks=('speed',), quality=math.nan, scores={})
  text = read_page(make_workdir(tmp_path, lines, reference=('<one>', 'two')))
  # Of several references each has a line.
  assert '&lt;one&gt;\ntwo</dd>' in text
  assert '✓ right' not in text
  assert 'Quality against' not in text
  assert next(iter(parts_of(text))) == 'All points'


@pytest.mark.parametrize('scale', [1.0, 100.0])
def test_the_scale_of_a_metric_is_that_of_the_config(tmp_path, scale):
  # Whatever the scores are; the best score of float32 is above 1.
  lines = make_records(['sums'], quality=1.0000001192092896)
  workdir = make_workdir(tmp_path, lines, {'data': {'sums': {'scale': scale}}})
  table = runs.gather(runs.read(workdir)).table
  assert set(table.scale) == {scale}


def test_what_the_verifier_cannot_do_is_said_first(tmp_path):
  lines = [
    dataclasses.replace(line, quality=0.0)
    for line in graded_records(('verifier_only', 'speed', 'token_v3'))
  ]
  workdir = make_workdir(tmp_path, lines)
  frame = comparisons.compare(runs.gather(runs.read(workdir)), USUAL)
  # Strict decoding has its law, and the others could lose nothing.
  assert frame.as_good.tolist() == frame.strict.tolist()
  text = 'sums: the verifier scores 0.00 on 200 examples; look at the prompts'
  assert text in read_page(workdir)


def graded(method, lenience, example, **changes):
  """An answer that is right less often the more lenient it is."""
  alone = method in runs.BASELINES
  level = 0.9 if method == 'verifier_only' else 0.9 - 0.4 * max(0, lenience)
  if method == 'drafter_only':
    level = 0.5
  calls = 2 if lenience > 0.5 else 3
  own = {} if alone else {'verifier_calls': calls, 'verifier_tokens': 3 * calls}
  own |= {'quality': float((example * 37) % 100 < 100 * level)}
  return make_record('sums', method, lenience, example, **own | changes)


def graded_records(methods=('verifier_only', 'opt', 'token_v3'), **changes):
  leniences = {'verifier_only': [math.nan], 'drafter_only': [math.nan]}
  return [
    graded(method, lenience, example, **changes)
    for method in methods
    for lenience in leniences.get(method, [0.0, 0.4, 1.0])
    for example in range(200)
  ]


@pytest.fixture(scope='module')
def graded_page(tmp_path_factory):
  lines = graded_records(('verifier_only', 'speed', 'opt', 'token_v3'))
  lines += graded_records(['typical'], bonus_from='verifier', draft='argmax')
  return report_of(make_workdir(tmp_path_factory.mktemp('g'), lines))


def test_tables_are_folded_linked_and_files(graded_page):
  text = graded_page.read_text(encoding='utf-8')
  parts = parts_of(text)
  links, titles = re.findall('<a href="#(.*?)">(.*?)</a>', text), [*parts]
  assert [title for _, title in links] == titles
  assert all(text.count(f'id="{anchor}"') == 1 for anchor, _ in links)
  # A reader needs a figure and two tables, which are on three screens at most.
  unfolded = re.sub('<details>.*?</details>', '', text, flags=re.DOTALL)
  assert re.findall('<h2>(.*?)</h2>', unfolded) == titles[:2]
  assert titles[2] == 'All points'
  for part, count in dict(figure=1, table=2, article=0, pre=0).items():
    assert len(re.findall(rf'<{part}\b', unfolded)) == count
  # A link opens the details that contain its target.
  assert text.count('<details>') == text.count('</summary>\n<div id=') == 3
  kinds = graded_page.parent / 'tables/kinds.csv'
  table = pd.read_csv(kinds, index_col='variant')
  number = f'{table.speedup["speculative cascade"]:.2f}'
  cells = dict(reversed(cells_of(parts[titles[0]], 'Modelled speed-up')))
  assert cells['speculative cascade'].startswith(number)
  first = table.loc[table.speedup.idxmax()]
  (said,) = re.findall('<p class="first">(.*?)</p>', text, re.DOTALL)
  assert f'modelled speed-up {first.speedup:.2f} (' in said
  assert 'strict decoding has 0.71.\nRules dominate' in said
  picture = (graded_page.parent / 'figures/quality.png').read_bytes()
  assert picture.startswith(b'\x89PNG')


def test_the_clock_is_compared_where_arms_took_turns(tmp_path, graded_page):
  title = 'Measured and modelled speed-ups'
  assert title not in graded_page.read_text()
  workdir = make_workdir(tmp_path, graded_records())
  # Twice as fast on the clock as the verifier alone, whatever the model says.
  # Examples of two tasks may have the same id.
  entrants = ('verifier_only', math.nan, 0.2), ('opt', 0.0, 0.1)
  timed = [
    dataclasses.replace(graded(method, lenience, example), **changes)
    for method, lenience, seconds in entrants
    for task in ('sums', 'names')
    for changes in [dict(task=task, wall_s=seconds)]
    for example in range(10)
  ]
  records.write(workdir / 'race.jsonl', timed)
  path = report_of(workdir)
  part = parts_of(path.read_text(encoding='utf-8'))[title]
  table = pd.read_csv(path.parent / 'tables/race.csv', index_col='variant')
  assert table.index.tolist() == ['opt']
  row = table.loc['opt']
  emitted = timed[-1].emitted / timed[0].emitted
  assert row.wall_speedup == pytest.approx(2 * emitted)
  assert row.by_model == pytest.approx(row.speedup / row.wall_speedup)
  assert row.n == 20
  cells = dict(cells_of(part, 'Measured speed-up'))
  assert f'{row.wall_speedup:.2f}' in cells['OPT']


@pytest.mark.slow
@pytest.mark.parametrize(
  'lines',
  [
    make_records(['sums'], ['drafter_only']),
    make_records(['sums'], ['my $_$ <rule>', 'a:"b"']),
    graded_records(['opt', 'token_v3']),
    graded_records(['verifier_only']),
    graded_records(quality=math.nan),
    [r for r in graded_records() if r.id == '0'],
    graded_records(quality=math.nan)[:1] + graded_records()[1:],
    [answers.make_failure(r, 'it did not fit')[0] for r in graded_records()],
  ],
)
def test_odd_runs_make_a_page(tmp_path, lines):
  assert '>nan<' not in read_page(make_workdir(tmp_path, lines))


_CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')


@pytest.mark.slow
@pytest.mark.skipif(_CHROMIUM is None, reason='apt install chromium')
def test_a_page_fits_a_phone_sorts_and_asks_for_nothing(tmp_path):
  sync = pytest.importorskip('playwright.sync_api')
  url = report_of(make_workdir(tmp_path)).as_uri()
  wrong = []
  with sync.sync_playwright() as play:
    browser = play.chromium.launch(executable_path=_CHROMIUM)
    page = browser.new_page(viewport={'width': 390, 'height': 800})
    page.set_default_timeout(10_000)
    page.on('pageerror', lambda error: wrong.append(str(error)))
    page.on('console', lambda said: wrong.append(said.text))
    page.on('request', lambda asked: wrong.append(asked.url))
    page.goto(url)
    width = page.locator('figure img').first.evaluate('x => x.naturalWidth')
    # The narrow figure, whose text is shrunk by a quarter at most.
    assert 0 < width < 430
    assert page.evaluate('document.documentElement.scrollWidth <= innerWidth')
    page.locator('details summary').first.click()
    page.locator('table.summary button').last.click()
    assert page.locator('[aria-sort=ascending]').count() == 1
    browser.close()
  # The page itself, and its figure, are all that is asked for.
  assert [x for x in wrong if not x.startswith('data:image/')] == [url]


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
  (said,) = comparisons.compare_named(run, ['opt@inf@4', 'chow@0.5'], USUAL)
  assert runs.gather(run).table.n.max() == 3
  # As if chow were the verifier that a page compares with.
  lines = [
    dataclasses.replace(x, method='verifier_only') if x.method == 'chow' else x
    for x in run.records['all']
    if x.method in ('opt', 'chow')
  ]
  run = dataclasses.replace(run, records={'all': lines})
  table = comparisons.compare(runs.gather(run), USUAL)
  row = table[(table.lenience == math.inf) & (table.gamma == 4)].iloc[0]
  assert row.n == 8
  assert row.difference != 0
  assert said == (
    'sums at temperature 1, 8 examples: opt@inf@4 is {speedup:.2f}'
    ' [{speedup_low:.2f}, {speedup_high:.2f}] times as fast as chow@0.5@2,'
    ' quality gain {difference:+.3f} [{difference_low:+.3f},'
    ' {difference_high:+.3f}] (modelled latency, 95 %).'
  ).format(**row)


def test_what_are_not_two_points_is_refused(named):
  run = runs.read(named)
  lines = [
    dataclasses.replace(x, failure='score: no') if x.method == 'chow' else x
    for x in run.records['all']
  ]
  failed = dataclasses.replace(run, records={'all': lines})
  with pytest.raises(ValueError, match='compare: no task has'):
    comparisons.compare_named(failed, ['chow@0.5@2', 'opt@inf@4'], USUAL)
  for other in ('opt@9', 'opt@0', 'chow@0.5'):
    with pytest.raises(ValueError, match=r'of chow .*opt@0@2, opt@0@4'):
      comparisons.compare_named(run, ['chow@0.5', other], USUAL)
