"""Tests of the page of a run and of the launcher that rebuilds it."""

import base64
import dataclasses
import html.parser
import json
import math
import pathlib
import re

import answers
import launching
import pandas as pd
import pytest
from answers import COSTS, measured

from cascades import methods
from experiments import records, tasks
from experiments.analysis import (
  comparisons,
  mixture,
  named_points,
  reference_points,
  runs,
)
from experiments.reports import AnalysisConfig, styles, write_report
from experiments.reports import answers as page_answers
from experiments.sweeps import sequence

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
  shown = dict(tokens=[5, 6, 1], token_strings=['<a>\n', ' b', ''])
  trace = answers.make_trace(deferred=[0, 1, 0], **shown)
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
  costs = measured(COSTS)
  (path / 'costs.json').write_text(costs.model_dump_json())
  known = {x.task: tasks.quality_metric(x.task) for x in lines}
  scales = {k: dict(scale=m.scale if m else 1.0) for k, m in known.items()}
  config = {'data': scales} | (config or {})
  (path / 'config.json').write_text(json.dumps(config))
  return path


def report_of(*workdirs, **options):
  return write_report(list(map(runs.read, workdirs)), USUAL, **options)


def read_page(*workdirs):
  return report_of(*workdirs).read_text(encoding='utf-8')


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
    if tag not in ('meta', 'img'):
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
  return read_page(workdir)


def test_page_needs_nothing_else_and_escapes_texts(page):
  parsed = Page(page)
  assert not re.search('https?:|@import', page)
  assert not {'link', 'iframe', 'object', 'svg'} & set(parsed.tags)
  (source,) = parsed.values('src')
  kind, _, data = source.partition('base64,')
  assert kind == 'data:image/svg+xml;'
  assert b'Verifier alone' in base64.b64decode(data)
  # References inside the page, each to something that is there, once.
  ids = parsed.values('id')
  assert len(ids) == len(set(ids))
  inner = parsed.values('href')
  assert inner
  assert {h[1:] for h in inner} <= set(ids)
  assert HOSTILE not in page
  assert parsed.tags.count('script') == 1
  assert any(HOSTILE in text for text in parsed.texts)
  assert 'three <methods>' in parsed.texts


def test_page_has_a_row_for_each_point_and_says_what_was_run(page):
  assert 'small drafts for large · 8 examples per task · gamma 2 · te' in page
  assert 'verifier token 10 ms; drafter token 1 ms' in page
  assert 'block of 2 drafts 12 ms' in page
  assert 'jax 9.9.9' in page
  rows = parts_of(page)['All points'].count('<tr><th scope="row" data-key')
  assert rows == 2 * sum(map(len, LENIENCES.values()))
  assert f'<td data-key="-inf">{MINUS}∞</td>' in page
  assert '<td data-key="inf">∞</td>' in page
  # Tokens keep whitespace and source.
  title = 'title="accepted draft, token 5\nthe rule keeps the token"'
  assert f'<span class="t draft" {title}>&lt;a&gt;↵\n</span>' in page
  assert re.search(r'<span class="t residual" title="[^"]+"> b</span>', page)
  assert re.search(r'<span class="t bonus" title="[^"]+">\[end\]</span>', page)


def test_examples_are_of_a_middling_lenience_and_of_every_task():
  choose = page_answers.choose_records
  chosen = choose(make_records())
  assert [r.task for r in chosen] == ['sums', 'words', 'sums', 'words', 'sums']
  assert {(r.method, r.lenience) for r in chosen} == {('token_v3', 0.25)}
  other = choose(make_records(methods=['verifier_only', 'opt']))
  assert {(r.method, r.lenience) for r in other} == {('opt', 0.0)}
  assert not choose(make_records(methods=['verifier_only']))


def test_beside_an_answer_stands_the_strict_one_or_the_verifiers_own():
  lines = make_records(['sums'])
  one = next(r for r in lines if (r.method, r.lenience) == ('opt', 0.0))
  find = page_answers.find_counterpart
  alone = find(lines, one)
  assert (alone.method, alone.id) == ('verifier_only', one.id)
  failed = dataclasses.replace(alone, failure='too long')
  assert find([one, failed], one) is None
  others = dict(verification='block'), dict(temperature=0.5), dict(gamma=4)
  strict = [
    make_record('sums', 'speed', float(i < 1) / 2, int(one.id), **x)
    for i, x in enumerate(({}, *others, {}))
  ]
  assert find(lines + strict[:3], one) is alone
  assert find(lines + strict[:4], one) is strict[3]
  assert find(lines + strict, one) is strict[4]
  # Nothing stands beside itself.
  assert find(lines + strict, strict[4]) is strict[3]
  assert find([one, strict[4]], strict[4]) is None


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


def test_a_point_has_its_gamma_where_they_vary(tmp_path, page):
  lines = make_records(['sums']) + make_records(['sums'], ['opt'], gamma=4)
  part = parts_of(read_page(make_workdir(tmp_path, lines)))['All points']
  gammas = [gamma for name, gamma in cells_of(part, 'Gamma') if name == 'OPT']
  assert gammas == ['2'] * 3 + ['4'] * 3
  assert '>Gamma</button>' not in page


def test_every_method_has_a_look_of_its_own_and_variants_are_dashed():
  known = [*methods.METHODS, *sequence.CONFIDENCES]
  assert not set(known) - set(styles._BUILT_IN)
  table = styles.styles({name: name for name in [*known, 'mine', 'yours']})
  assert len({x.label for x in table.values()}) == len(table)
  assert len({x[1:] for x in table.values()}) == len(table)
  variants = 'diff', 'diff block', 'diff sequential', 'chow sequential'
  table = styles.styles({name: name.split()[0] for name in variants})
  assert [x.label for x in table.values()] == [
    *('Diff', 'Diff (block)', 'Diff (sequential oracle)', 'Chow (sequential)')
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


def test_launcher_rebuilds_the_page_or_shows_why(workdir, page, tmp_path):
  path = workdir / 'report' / 'index.html'
  path.unlink()
  flags = f'--workdir={workdir}', '--resamples=100'
  done = launching.run('experiments.report', *flags)
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
  assert '✓ right' not in text
  assert 'At the verifier' not in text
  assert '<img' not in text
  assert next(iter(parts_of(text))) == 'All points'


# --- The first sentences.


def first_of(text):
  """The sentences above the sections."""
  (part,) = re.findall('<ol class="first">.*?</ol>', text, re.DOTALL)
  return list(map(html.unescape, re.findall('<li>(.*?)</li>', part)))


def test_the_first_sentences_answer_three_questions(tmp_path):
  drawn = 'verifier_only', 'drafter_only', 'speed', 'token_v3'
  # A block for each answer.
  block = dict(verifier_calls=1, verifier_tokens=3)
  lines = [
    dataclasses.replace(line, **block) if line.gamma else line
    for line in graded_records(drawn)
  ]
  fastest, best, above = first_of(read_page(make_workdir(tmp_path, lines)))
  assert fastest.startswith("At the verifier's quality, ")
  assert ' is fastest: 1.' in fastest
  assert 'differs by 0.000 (\u22120.019 to +0.019)' in fastest
  assert best.startswith("Within the verifier's latency, ")
  assert 'quality 0.900' in best
  assert above.startswith('No method is shown to be better than both models')


@pytest.mark.parametrize('scale', [1.0, 100.0])
def test_the_scale_of_a_metric_is_that_of_the_config(tmp_path, scale):
  # Whatever the scores are; the best score of float32 is above 1.
  lines = make_records(['sums'], quality=1.0000001192092896)
  workdir = make_workdir(tmp_path, lines, {'data': {'sums': {'scale': scale}}})
  table = runs.gather([runs.read(workdir)]).table
  assert set(table.scale) == {scale}


def test_what_the_verifier_cannot_do_is_said_first(tmp_path):
  lines = [
    dataclasses.replace(line, quality=0.0)
    for line in graded_records(('verifier_only', 'speed', 'token_v3'))
  ]
  workdir = make_workdir(tmp_path, lines)
  frame = comparisons.compare(runs.gather([runs.read(workdir)]), USUAL)
  # Strict decoding has its law, and the others could lose nothing.
  best = comparisons.best_points(frame)
  assert best.as_good.tolist() == [True, True, False]
  text = 'sums: the verifier scores 0.00 on 200 examples; look at the prompts'
  assert text in read_page(workdir)


def test_strict_decoding_is_what_the_fastest_is_seen_beside(tmp_path):
  lines = graded_records(('verifier_only', 'drafter_only'))
  strict = [graded('speed', 0.0, i) for i in range(200)]
  # As good as strict, in fewer calls.
  fewer = dict(lenience=0.5, verifier_calls=2, verifier_tokens=6)
  lines += strict + [dataclasses.replace(x, **fewer) for x in strict]
  fastest, *_ = first_of(read_page(make_workdir(tmp_path, lines)))
  assert 'Speculative decoding at lenience 0.5 is fastest' in fastest
  assert 'Strict speculative decoding, which is lossless, is' in fastest
  one, other = re.findall(r'([0-9.]+) times', fastest)
  assert float(one) > float(other)


def test_a_point_is_as_good_by_pairs_of_answers(tmp_path):
  lines = graded_records(('verifier_only', 'drafter_only', 'speed'))
  # As good on average, in fewer calls; but other answers are right.
  fewer = dict(verifier_calls=1, verifier_tokens=3, deferred=1)
  for i in range(200):
    fewer['quality'] = graded('speed', 0.0, 199 - i).quality
    lines.append(graded('rule_of_mine', 0.5, i, **fewer))
  text = read_page(make_workdir(tmp_path, lines))
  assert 'Speculative decoding at lenience 0 is fastest' in first_of(text)[0]
  part = parts_of(text)['All points']
  heading = 'Difference from the verifier'
  assert dict(cells_of(part, heading))['Verifier alone'].startswith('0.000')
  # No workdir says what the rule is, but its answers have deferrals.
  kinds = (tmp_path / 'report/tables/kinds.csv').read_text()
  assert 'speculative cascade' in kinds
  assert 'relaxed' not in kinds


def test_the_sentences_need_the_models_alone(tmp_path):
  lines = graded_records(('verifier_only', 'opt'))
  *_, above = first_of(read_page(make_workdir(tmp_path / 'v', lines)))
  assert above.startswith('The drafter alone was not run')
  lines = graded_records(('drafter_only', 'opt'))
  assert '<li>At' not in read_page(make_workdir(tmp_path / 'd', lines))


@pytest.mark.parametrize('block', [1.05, 1.5])
def test_costs_that_changed_are_spoken_of(tmp_path, block):
  workdir = make_workdir(tmp_path, make_records(['sums']))
  verify_s = {k: s * block for k, s in COSTS.verify_s.items()}
  costs = measured(COSTS, COSTS.model_copy(update=dict(verify_s=verify_s)))
  (workdir / 'costs.json').write_text(costs.model_dump_json())
  for words in ('Unit costs of', '1.50 times as long at the end'):
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


def csv(page, name):
  return pd.read_csv(page.parent / 'tables' / f'{name}.csv')


@pytest.fixture(scope='module')
def graded_page(tmp_path_factory):
  lines = graded_records(('verifier_only', 'speed', 'opt', 'token_v3'))
  return report_of(make_workdir(tmp_path_factory.mktemp('g'), lines))


def test_tables_are_folded_linked_and_files(graded_page):
  text = graded_page.read_text(encoding='utf-8')
  parts = parts_of(text)
  *titles, _ = parts
  assert titles == ['Kinds of decoding at equal quality', 'All points']
  links = re.findall('<a href="#(.*?)">(.*?)</a>', text)
  assert [title for _, title in links] == titles
  assert all(text.count(f'id="{anchor}"') == 1 for anchor, _ in links)
  assert not any('<details>' in parts[title] for title in titles)
  table = csv(graded_page, 'kinds').set_index('variant')
  number = f'{table.speedup["speculative cascade"]:.2f}'
  cells = dict(reversed(cells_of(parts[titles[0]], 'Modelled speed-up')))
  assert cells['speculative cascade'].startswith(number)
  lines = (graded_page.parent / 'tables/kinds.md').read_text().splitlines()
  assert lines[2].startswith('| Kind | Task | Fastest |')
  assert lines[2].endswith('| Quality difference | Best: modelled speed-up |')
  assert number in next(x for x in lines if x.startswith('| speculative'))
  picture = (graded_page.parent / 'figures/quality.png').read_bytes()
  assert picture.startswith(b'\x89PNG')


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


CONFIG = dict(
  verifier='large', drafter='small', seed=0, batch_size=8, chat=False
)
CONFIG |= dict(task={'shots': 8, 'max_new_tokens': 64})
CONFIG |= dict(file={'stop_strings': ['.']})


def two(tmp_path, lines=None, reference=HOSTILE, **changes):
  one = make_workdir(tmp_path / 'one', graded_records(), CONFIG)
  lines = graded_records(['verifier_only', 'diff']) if lines is None else lines
  second = tmp_path / 'two'
  return [one, make_workdir(second, lines, CONFIG | changes, reference)]


def test_workdirs_of_the_same_settings_are_one_page(tmp_path):
  workdirs = two(tmp_path, batch_size=1)
  with pytest.raises(ValueError, match='named twice'):
    report_of(workdirs[0], workdirs[0])
  path = report_of(*workdirs)
  assert path == tmp_path / 'one/report/with-two/index.html'
  assert 'class="notice"' not in path.read_text(encoding='utf-8')
  table = csv(path, 'points')
  assert set(table.variant) == {'verifier_only', 'opt', 'token_v3', 'diff'}
  assert table.groupby('run').size().to_dict() == {'one': 7, 'two': 4}


@pytest.mark.parametrize(
  ('field', 'changes'),
  [
    ('prompts', {'reference': 'another'}),
    ('data', {'data': {'sums': {'hash': 'x'}}}),
    ('seed', {'seed': 1}),
    ('temperature', {'lines': graded_records(['diff'], temperature=0.5)}),
    ('truncation', {'top_p': 0.9}),
    ('weights', {'drafter': 'tiny'}),
    ('max_new_tokens', {'task': {'shots': 8, 'max_new_tokens': 32}}),
    ('shots', {'task': {'shots': 0, 'max_new_tokens': 64}}),
    ('chat', {'chat': True}),
    ('stop_strings', {'file': {'stop_strings': []}}),
  ],
)
def test_workdirs_of_other_settings_are_refused(tmp_path, field, changes):
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
    report_of(*workdirs)
  assert not (workdirs[0] / 'report').exists()
  path = report_of(*workdirs, allow=[field])
  said = f'These runs differ in {field}, which was allowed.'
  page = path.read_text(encoding='utf-8')
  assert page.count(f'<p class="notice">{said}</p>') == 1
  for table in (path.parent / 'tables').iterdir():
    assert said in table.read_text(), table


def test_weights_are_told_by_their_hashes(tmp_path):
  workdirs = two(tmp_path, verifier='elsewhere/large')

  def check(drafters):
    for workdir, drafter in zip(workdirs, drafters, strict=True):
      start = {'verifier': '1', 'drafter': drafter, 'tokenizer': '3'}
      (workdir / 'provenance.json').write_text(json.dumps({'starts': [start]}))
    return runs.check(list(map(runs.read, workdirs)))

  with pytest.raises(ValueError, match='differ in weights;'):
    check('ab')
  assert not check('aa')


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
  text = report_of(make_workdir(tmp_path, lines)).read_text(encoding='utf-8')
  Page(text)
  assert '>nan<' not in text


def test_examples_of_two_tasks_are_timed_apart_though_their_ids_are_equal():
  timed = [
    dataclasses.replace(graded(method, lenience, example), task=task)
    for task in ('sums', 'names')
    for method, lenience in (('verifier_only', math.nan), ('opt', 0.0))
    for example in range(3)
  ]
  costs = measured(COSTS)
  path = pathlib.Path('run')
  run = runs.Run(path, {}, {}, costs, {}, race=timed)
  frame = mixture.compare_times(mixture.timed_points(run), USUAL)
  assert frame.n.tolist() == [6]
  assert len(comparisons.matrices(mixture.timed_points(run), [0])['id']) == 6


# --- Two points that the command line names, compared.


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
  (said,) = named_points.compare([run], ['opt@inf@4', 'chow@0.5'], USUAL)
  assert runs.gather([run]).table.n.max() == 3
  lines = [x for x in run.records['all'] if x.method != 'diff']
  points = runs.gather([dataclasses.replace(run, records={'all': lines})])
  table = points.table
  one = table[(table.lenience == math.inf) & (table.gamma == 4)].index[0]
  other = table[table.variant == 'chow'].index[0]
  wanted = comparisons.pair(points, one, other, USUAL)
  assert wanted['n'] == 8
  assert wanted['gained'] != 0
  assert said == (
    'sums at temperature 1, 8 examples: opt@inf@4 is {faster:.2f}'
    ' [{faster_low:.2f}, {faster_high:.2f}] times as fast as chow@0.5@2,'
    ' quality gain {gained:+.3f} [{gained_low:+.3f}, {gained_high:+.3f}]'
    ' (modelled latency, 95 %).'
  ).format(**wanted)


def test_points_without_a_common_answer_are_not_compared(named):
  run = runs.read(named)
  lines = [
    dataclasses.replace(x, failure='score: no') if x.method == 'chow' else x
    for x in run.records['all']
  ]
  failed = dataclasses.replace(run, records={'all': lines})
  with pytest.raises(ValueError, match='compare: no task has'):
    named_points.compare([failed], ['chow@0.5@2', 'opt@inf@4'], USUAL)


@pytest.mark.parametrize('other', ['opt@9', 'opt@0', 'chow@0.5'])
def test_what_is_not_a_point_is_refused(named, other):
  with pytest.raises(ValueError, match=r'of chow .*opt@0@2, opt@0@4'):
    named_points.compare([runs.read(named)], ['chow@0.5', other], USUAL)


def test_the_command_prints_the_sentence(named):
  flags = f'--workdir={named}', '--compare=chow sequential@0.5,verifier_only'
  done = launching.run('experiments.report', *flags)
  assert done.returncode == 0
  # It has no gamma.
  assert 'examples: chow sequential@0.5 is ' in done.stdout
  assert not (named / 'report').exists()
