"""Metrics of tasks, and tasks and metrics that other packages add."""

import dataclasses

import pytest
from ml_collections import ConfigDict

from experiments.guides import inventory
from experiments.sweeps import plan
from experiments.tasks import METRICS, TASKS, TaskSpec

# Answers and references that every metric takes.
_ANSWERS = ('#### 12', 'twelve', '')
_REFERENCE = 'She has 3*4=12, the answer (B).\n#### 12'


@pytest.mark.parametrize('name', METRICS)
def test_a_metric_has_the_scores_that_it_declares(name):
  metric = METRICS[name]
  assert metric.help.endswith('.')
  assert len(metric.help) <= 72
  assert metric.score.__doc__
  right = _REFERENCE if metric.needs_reference else '[12]'
  best = metric.score(right, _REFERENCE)
  for answer in _ANSWERS:
    scores = metric.score(answer, _REFERENCE)
    assert tuple(scores) == metric.scores
    assert scores[metric.scores[0]] <= best[metric.scores[0]]
  assert best[metric.scores[0]] == pytest.approx(metric.scale)
  if metric.corpus:
    assert metric.corpus(best) == best[metric.scores[0]]
  if metric.signature:
    assert '|' in metric.signature()


def test_every_metric_is_of_the_guide():
  assert all(f'`{name}`' in inventory.tasks() for name in (*TASKS, *METRICS))


def test_an_unknown_metric_is_refused():
  with pytest.raises(ValueError, match=r"^metric: 'roug' is not .*'rouge'"):
    dataclasses.replace(TASKS['xsum'], metrics=('roug',))


def test_a_declaration_has_problems_from_one_place():
  declared = dict(name='a', metrics=(), max_new_tokens=1)
  message = '^task: a must have either problem or source; give one'
  with pytest.raises(ValueError, match=message):
    TaskSpec(**declared)
  with pytest.raises(ValueError, match=message):
    TaskSpec(**declared, problem=print, source=TASKS['xsum'].source)


_PACKAGE = """
from experiments.tasks import Metric, TaskSpec, build_task

LENGTH = Metric(
  name='length',
  help='Characters of the answer.',
  scores=('characters',),
  score=lambda answer, reference: {'characters': float(len(answer))},
)
TASK = build_task(TaskSpec(
  name='letters',
  problem=lambda rng, phraser: (key := rng.choice('abcdefgh') * 9, key, key),
  metrics=(LENGTH, 'exact_match'),
  max_new_tokens=3,
))
"""
_ENTRY_POINTS = """
[cascades.tasks]
letters = letters_package:TASK
[cascades.metrics]
length = letters_package:LENGTH
"""


@pytest.fixture
def letters_package(tmp_path, monkeypatch):
  """Installs a package with a task and a metric for one test."""
  (tmp_path / 'letters_package.py').write_text(_PACKAGE)
  info = tmp_path / 'letters_package-1.0.dist-info'
  info.mkdir()
  (info / 'METADATA').write_text('Name: letters-package\nVersion: 1.0\n')
  (info / 'entry_points.txt').write_text(_ENTRY_POINTS)
  monkeypatch.syspath_prepend(tmp_path)
  for registry in (TASKS, METRICS):
    monkeypatch.setattr(registry, '_entries', dict(registry._entries))
    # The entry points of installed packages are cached.
    monkeypatch.setitem(vars(registry), '_points', None)
    del vars(registry)['_points']


@pytest.mark.usefixtures('letters_package')
def test_a_package_adds_a_task_and_a_metric():
  assert TASKS.origin('letters') == ('letters-package', '1.0')
  assert not METRICS.is_builtin('length')
  (task,) = plan.configured_tasks(ConfigDict({'tasks': ('letters',)})).values()
  (example,) = task.load(split='train', num_examples=1)
  assert example.reference == example.prompt
  assert task.score('ab', 'ab') == {'characters': 2.0, 'exact_match': 1.0}
  assert METRICS.get('length') is task.metrics[0]
  with pytest.raises(ValueError, match=r"'leters'.*did you mean 'letters'"):
    plan.configured_tasks(ConfigDict({'tasks': ('leters',)}))
  # The library's guide does not list what is installed beside it.
  assert 'letters' not in inventory.tasks()
