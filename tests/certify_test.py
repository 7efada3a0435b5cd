"""Certificates of answers, from their files to the exit code."""

import gzip
import json

import answers
import launching
import numpy as np
import pandas as pd
import pytest
import sacrebleu
import scipy.stats
import small
import stats_test

from experiments import records
from experiments.analysis import certificates, engine_answers
from experiments.analysis.engine_answers import Engine, Pairs

_NAN = {x: np.full((2, 1), np.nan) for x in engine_answers.SIZES}


def flips(n, lost, gained=0, scale=1.0):
  """Right answers, of which some are lost, and gained wrong ones."""
  base = np.repeat([0.0, 1.0], [gained, n - gained])
  lossy = np.repeat([1.0, 0.0], [n - lost, lost])
  return Pairs('', 'score', scale, np.stack([base, lossy]), _NAN)


def judged(*engines, margin=0.02, **options):
  named = [(Engine(f'e{i}', {}), x) for i, x in enumerate(engines)]
  return certificates.compare('base', named, margin, **options)


def samples(folder, values, date='2026-01-02', shots=0, **changes):
  """Writes what the harness logs: {task: {metric: values}} after a filter."""
  folder.mkdir(parents=True, exist_ok=True)
  for task, metrics in values.items():
    usual = dict(metrics=[*metrics], filter='none', resps=[['yes']])
    with (folder / f'samples_{task}_{date}.jsonl').open('a') as file:
      for i, row in enumerate(zip(*metrics.values(), strict=True)):
        hashes = dict(doc_hash=f'{task}{i}', prompt_hash=f'{shots}')
        line = dict(zip(metrics, row, strict=True), doc_id=i)
        file.write(json.dumps(usual | hashes | line | changes) + '\n')
  facts = {'n-shot': dict.fromkeys(values, shots)}
  facts['higher_is_better'] = {x: {'loss': False} for x in values}
  (folder / f'results_{date}.json').write_text(json.dumps(facts))
  return folder


def certify(base, *lossy, margin=0.05, metric=None, answer_filter=None):
  base = engine_answers.read('base', str(base), metric)
  engines = [engine_answers.read('lossy', str(x), metric) for x in lossy]
  pairs = [engine_answers.pair(base, x, metric, answer_filter) for x in engines]
  tasks, notices = zip(*pairs, strict=True)
  engines = list(zip(engines, tasks, strict=True))
  return certificates.compare(base.name, engines, margin), notices[0]


def test_a_verdict_is_that_of_the_interval():
  for lost, gained, n, verdict, is_more_needed in (
    (0, 0, 30, 'too few rows', True),
    (0, 0, 200, 'not worse', False),
    (5, 0, 2000, 'not worse', False),
    # More rows would certify the loss that is above the margin.
    (30, 0, 2000, 'undecided', True),
    (45, 0, 2000, 'undecided', False),
    (100, 10, 2000, 'worse', False),
    (30, 30, 200, 'too few rows', True),
    # 20 and 17 right of 30, without pairs: three to thirteen are lost.
    (3, 0, 30, 'too few rows', True),
    (13, 10, 30, 'too few rows', True),
  ):
    row = judged([flips(n, lost, gained)]).iloc[0]
    ends = stats_test.paired(gained, lost, n)
    assert (row.difference_low, row.difference_high) == pytest.approx(ends)
    assert (row.verdict, row.needed > n) == (verdict, is_more_needed)
    assert (row.lost, row.gained, row.n) == (lost, gained, n)


@pytest.mark.parametrize('lost', [0, 5, 10])
def test_the_rows_needed_certify_four_times_in_five(lost):
  n = judged([flips(100, lost, lost)], margin=0.03).needed[0]
  # If no answer differs, as many as may have been missed.
  share = lost / 100 or stats_test.paired(0, 0, 100)[1] / 2
  power = sum(
    scipy.stats.binom.pmf(lost, n, share)
    * scipy.stats.binom.sf(gained - 1, n - lost, share / (1 - share))
    for lost in range(2 * round(n * share))
    for gained in [stats_test.least_gained(lost, n, 0.03)]
  )
  assert power == pytest.approx(0.8, abs=0.03)


def test_simulated_certificates_are_as_rarely_wrong_as_they_say():
  grid = small.read_json(small.FIXTURES / 'certify_grid.json')
  assert [share <= 0.064 for *_, share in grid['wrong']] == 20 * [True]
  for kind, *_, share in grid['promised']:
    assert share == pytest.approx(0.8, abs=0.03), kind


def test_captions_of_four_engines_are_too_few(tmp_path):
  # Gemma 3 270M, 200 captions of Multi30k: transformers plain and with its
  # ensemble at .5, strict and TokenV3 at .5; each word is replaced by another.
  file = small.FIXTURES / 'certify_captions.json.gz'
  for name, rows in json.loads(gzip.decompress(file.read_bytes())).items():
    (tmp_path / name).mkdir()
    lines = map(json.dumps, rows)
    path = tmp_path / name / 'samples_captions_2026-11-30.jsonl'
    path.write_text('\n'.join(lines))
  names = 'hf', 'hf_ensemble', 'strict', 'token_v3'
  paths = [*map(tmp_path.joinpath, names)]
  # A file of samples is as good as its folder.
  paths[0] /= 'samples_captions_2026-11-30.jsonl'
  frame, notices = certify(*paths, margin=1)
  assert {*frame.verdict} == {'too few rows'}
  assert (notices, {*frame.n}, {*frame.needed}) == ([], {200}, {2836})
  assert [*frame.lost] == [46, 0, 47]
  assert [*frame.gained] == [70, 0, 66]
  np.testing.assert_allclose(frame.difference, [1.107, 0, 0.617], atol=1e-3)


def test_several_engines_share_the_risk_of_a_wrong_certificate():
  least, much, bad = [flips(200, 0)], [flips(2000, 0)], [flips(200, 30)]
  assert judged(least).verdict[0] == 'not worse'
  assert [*judged(least, bad, bad).verdict] == ['too few rows', *2 * ['worse']]
  # After those that are certified there are fewer to share with.
  assert judged(least, much, much).verdict[0] == 'not worse'
  # In an order there is no price, up to the first that fails.
  verdicts = judged(least, bad, much, in_order=True).verdict
  assert verdicts.tolist() == ['not worse', 'worse', 'not tested']
  with pytest.raises(ValueError, match='margin: must be in points of one sca'):
    judged([least[0], flips(100, 0, scale=100.0)])


@pytest.mark.parametrize('name', ['jsonl', 'csv', 'parquet'])
def test_a_table_has_scores_and_what_they_cost(tmp_path, name):
  def write(path, scores, tokens, seconds):
    ids = [f'q{i}' for i in range(120)]
    frame = pd.DataFrame({'id': ids, 'score': scores, 'tokens': tokens})
    frame = frame.assign(text='a b c d', reference='a b c d', seconds=seconds)
    frame = frame.assign(accepted=3, drafted=4)
    options = dict(orient='records', lines=True) if name == 'jsonl' else {}
    getattr(frame, f'to_{name.replace("jsonl", "json")}')(path, **options)
    return path

  base = write(tmp_path / f'a.{name}', [1, 0] * 60, 10, 2.0)
  lossy = write(tmp_path / f'b.{name}', [1, 0] * 59 + [0, 0], 5, 0.5)
  row = certify(base, lossy)[0].iloc[0]
  assert row.difference == pytest.approx(-1 / 120)
  assert (row.base_score, row.lost, row.gained) == (0.5, 1, 0)
  # Per token.
  assert (row.speedup, row.speedup_low) == (2, 2)
  assert (row.base_length, row.length, row.acceptance_rate) == (10, 5, 0.75)
  for metric, best in ('bleu', 100), ('exact_match', 1):
    frame, _ = certify(base, lossy, margin=best / 20, metric=metric)
    assert frame.score[0] == pytest.approx(best)


def test_samples_are_paired_by_document_after_a_filter(tmp_path):
  scores = [0, 1] * 30
  base = {'sums': {'loss': scores, 'acc': scores}, 'words': {'em': scores}}
  old, more = ({'sums': {'acc': [x] * 60}} for x in (0, 1))
  first = samples(samples(tmp_path / 'a', old, '2026-01-01'), base)
  second = samples(tmp_path / 'b', base, shots=5)
  frame, notices = certify(first, second)
  assert frame.task.tolist() == ['mean of 2 tasks', 'sums', 'words']
  # The squares of the widths add up.
  widths = frame.difference - frame.difference_low
  assert 2 * widths[0] == pytest.approx(np.hypot(widths[1], widths[2]))
  # Lower losses are better.
  assert frame.metric.tolist() == ['acc, em', 'acc', 'em']
  assert {*frame.base_score, *frame.length} == {0.5, 3}
  for fact in 'another prompt than', 'number of worked examples than':
    assert sum(fact in x for x in notices) == 2
  samples(first, more, filter='loose')
  with pytest.raises(ValueError, match='sums has none and loose; choose one'):
    certify(first, second)
  assert certify(first, second, answer_filter='none')[0].score[1] == 0.5
  with pytest.raises(ValueError, match='b has no sums loose acc, only sums'):
    certify(first, second, answer_filter='loose')
  other = samples(tmp_path / 'c', base, doc_hash='x')
  with pytest.raises(ValueError, match='c has another document than '):
    certify(first, other, answer_filter='none')


def test_corpus_scores_are_resampled_above_a_floor(tmp_path):
  rng = np.random.default_rng(0)
  words = 'the cat sat on a mat and saw one red bird near its old house'.split()
  texts = [' '.join(rng.permutation(words)[:9]) for _ in range(60)]
  worse = [x[x.index(' ') :] if i % 3 else x for i, x in enumerate(texts)]
  for name, function in ('bleu', 'corpus_bleu'), ('chrf', 'corpus_chrf'):
    values = {'t': {name: [[x, x] for x in texts]}}
    first, twin = (samples(tmp_path / f'{name}{i}', values) for i in range(2))
    values = [[[x], y] for x, y in zip(texts, worse, strict=True)]
    second = samples(tmp_path / f'{name}2', {'t': {name: values}})
    frame, _ = certify(first, second, twin, margin=0.5)
    want = getattr(sacrebleu, function)(worse, [texts]).score
    assert frame.score[0] == pytest.approx(want)
    assert frame.difference[0] == pytest.approx(want - 100)
    assert frame.lost.tolist() == [40, 0]
    # Nothing differs, which sixty rows do not show.
    assert frame.verdict.tolist() == ['worse', 'too few rows']
    low = 100 * stats_test.paired(0, 0, 60, level=0.975)[0]
    assert frame.difference_low[1] == pytest.approx(low)
  with pytest.raises(ValueError, match=r'chrf to 100.*got 0\.02; try --marg'):
    certify(first, second, margin=0.02)


def test_points_of_a_workdir_are_engines(tmp_path):
  points = ('speed', 0.0, 1.0), ('token_v3', 0.5, 1.0), ('token_v3', 0.9, 0.0)
  lines = [
    answers.make_record(method=method, lenience=x, quality=y, id=str(i))
    for i in range(200)
    for method, x, y in points
  ]
  records.write(tmp_path / 'records/all.jsonl', lines)
  base, *lossy = (f'{tmp_path}:{method}@{x:g}' for method, x, _ in points)
  frame, _ = certify(base, *lossy)
  assert [*frame.verdict, frame.score[0]] == ['not worse', 'worse', 1]
  with pytest.raises(ValueError, match='one of its points speed@0@2, token_'):
    certify(tmp_path, *lossy)


def test_the_command_shows_verdicts_and_ends_with_their_code(tmp_path):
  def run(code, **lossy):
    lossy = {'<script>': [1] * 200} | lossy
    for name, scores in lossy.items():
      lines = [f'{{"id": {i}, "score": {x}}}\n' for i, x in enumerate(scores)]
      (tmp_path / f'{name}.jsonl').write_text(''.join(lines))
    base, *flags = (f'--lossy={tmp_path}/{name}.jsonl' for name in lossy)
    flags += base.replace('lossy', 'base'), f'--workdir={tmp_path / "out"}'
    done = launching.run('experiments.certify', *flags, '--margin=.05')
    assert (done.returncode, done.stderr) == (code, '')
    return done.stdout

  bad = [0] * 100 + [1] * 100
  assert 'bad.jsonl is worse than' in run(3, bad=bad)
  said = run(4, few=[1] * 30)
  assert 'shares 30 of 200 ids with' in said
  assert 'because 30 rows are too few for a margin of 0.05, and at l' in said
  said = run(0, good=[1] * 200, bad=bad)
  assert 'good.jsonl is not worse than' in said
  assert 'changes by +0.000 [-0.025, +0.025] (97.5 %) on 200 rows' in said
  content = json.loads((tmp_path / 'out/certificate.json').read_text())
  assert [x['verdict'] for x in content['rows']] == ['not worse', 'worse']
  page = (tmp_path / 'out/index.html').read_text()
  assert content['sentences'][1] in page.replace('&lt;script&gt;', '<script>')
  assert page.count('<script>') == 1


_ROWS = '{{"id": 1, "score": 1}}\n{{"id": 2, "score": {}}}'
_GOOD = _ROWS.format(1)


@pytest.mark.parametrize(
  ('lines', 'flag', 'said'),
  [
    ('', '', 'has no answers'),
    ('{"id": 1, "score": 1}', '', 'shares 1 of 2 ids'),
    ('{"id": 1, "score": 1}\n{"id": "1"}', '', "has id '1' twice"),
    ('{"id": "q1", "score": 1}', '', "whose first is '1' and not 'q1'"),
    ('{"score": 1}', '', "line 1, has no field 'id', only 'score'; fix"),
    *((_ROWS.format(x), '', "at id '2'") for x in ('NaN', '"1"', 'true', -1)),
    (_GOOD, '--margin=2', 'one scale (score to 1), got'),
    (_GOOD, '--metric=bleu', "has no field 'reference', only 'id'"),
    (_GOOD, '--filter=x', 'has no x score, only score; choose'),
    (_GOOD, '--lossy={}/base.jsonl', 'base: give the answers of different'),
    (_GOOD, '--base={}/none', 'base: there is no'),
    (_GOOD, '--base=', 'base: give the answers of different'),
  ],
)
def test_a_mistake_is_one_sentence(tmp_path, lines, flag, said):
  (tmp_path / 'base.jsonl').write_text(_GOOD)
  (tmp_path / 'lossy.jsonl').write_text(lines)
  flags = [f'--{x}={tmp_path}/{x}.jsonl' for x in ('base', 'lossy')]
  flags += ['--margin=.02', f'--workdir={tmp_path}/out', flag.format(tmp_path)]
  done = launching.run('experiments.certify', *filter(None, flags))
  assert (done.returncode, done.stdout) == (2, '')
  (sentence,) = done.stderr.splitlines()
  assert said in sentence
  assert not (tmp_path / 'out').exists()
