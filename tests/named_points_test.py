"""Two points that the command line names, compared."""

import dataclasses

import launching
import numpy as np
import pytest
from report_test import make_records, make_workdir

from experiments.analysis import comparisons, named_points, runs
from experiments.analysis.analysis_config import AnalysisConfig

_CONFIG = AnalysisConfig(resamples=100)


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  lines = make_records(['sums'], ['verifier_only', 'opt'])
  lines += make_records(['sums'], ['chow'], deferrals=2, last_deferral=2)
  lines += make_records(['sums'], ['opt'], gamma=4)
  # Of a curve of fewer examples, which the two points are not limited to.
  lines += make_records(['sums'], ['diff'])[:3]
  return make_workdir(tmp_path_factory.mktemp('run'), lines)


def test_the_difference_is_that_of_all_examples_of_both(workdir):
  run = runs.read(workdir)
  (said,) = named_points.compare([run], ['opt@inf@4', 'chow@0.5'], _CONFIG)
  assert runs.gather([run]).table.n.max() == 3
  lines = [x for x in run.records['all'] if x.method != 'diff']
  points = runs.gather([dataclasses.replace(run, records={'all': lines})])
  table = points.table
  one = table[(table.lenience == np.inf) & (table.gamma == 4)].index[0]
  other = table[table.variant == 'chow'].index[0]
  wanted = comparisons.pair(points, one, other, _CONFIG)
  assert wanted['n'] == 8
  assert wanted['gained'] != 0
  assert said == (
    'sums at temperature 1, 8 examples: opt@inf@4 is'
    f' {wanted["faster"]:.2f} [{wanted["faster_low"]:.2f},'
    f' {wanted["faster_high"]:.2f}] times as fast as chow@0.5@2, quality'
    f' gain {wanted["gained"]:+.3f} [{wanted["gained_low"]:+.3f},'
    f' {wanted["gained_high"]:+.3f}] (modelled latency, 95 %).'
  )


def test_a_sequential_cascade_has_no_gamma(workdir):
  names = ['chow sequential@0.5', 'chow@0.5']
  (said,) = named_points.compare([runs.read(workdir)], names, _CONFIG)
  assert 'examples: chow sequential@0.5 is ' in said


def test_points_without_a_common_answer_are_not_compared(workdir):
  run = runs.read(workdir)
  lines = [
    dataclasses.replace(x, failure='score: no') if x.method == 'chow' else x
    for x in run.records['all']
  ]
  failed = dataclasses.replace(run, records={'all': lines})
  with pytest.raises(ValueError, match='compare: no task has'):
    named_points.compare([failed], ['chow@0.5@2', 'opt@inf@4'], _CONFIG)


@pytest.mark.parametrize('other', ['opt@9', 'opt@0', 'chow@0.5'])
def test_what_is_not_a_point_is_refused(workdir, other):
  with pytest.raises(ValueError, match=r'of chow .*opt@0@2, opt@0@4'):
    named_points.compare([runs.read(workdir)], ['chow@0.5', other], _CONFIG)


def test_the_command_prints_the_sentence(workdir):
  flags = f'--workdir={workdir}', '--compare=chow@0.5,verifier_only'
  done = launching.run('experiments.report', *flags)
  assert done.returncode == 0
  assert 'chow@0.5@2 is ' in done.stdout
  assert not (workdir / 'report').exists()
