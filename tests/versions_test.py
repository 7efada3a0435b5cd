"""Names of the code that gave results."""

import dataclasses
import functools
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascades import methods
from experiments import accept as accept_command
from experiments.records import external_code, versions
from experiments.sweeps import curve_plan, plan
from experiments.tasks import TASKS, Metric


def test_the_accepted_source_is_this_one():
  """Fails if code that decides results changed since they were tested."""
  assert versions.source_hash() == versions.read_accepted().source, (
    'run python -m experiments.accept'
  )
  assert (
    versions.current_code()
    == f'results version {versions.read_accepted().version}'
  )
  # Nor have the results themselves.
  assert versions.results_hash() == versions.read_accepted().results


def test_every_version_has_its_line():
  found = versions.read_accepted()
  assert [*found.changelog] == [str(i + 1) for i in range(found.version)]
  assert all(found.changelog.values())


@pytest.fixture
def checkout(tmp_path):
  """A copy of what is hashed."""
  for name, path in versions.deciding_modules().items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, tmp_path / name)
  assert versions.source_hash(tmp_path) == versions.source_hash()
  return tmp_path


def test_all_of_the_library_decides_but_what_only_looks():
  names = {*versions.deciding_modules()}
  for name in (
    *('methods/registry.py', 'decoding/step.py', 'methods/cascade.py'),
    *(
      'drafters/eagle/eagle_drafter.py',
      'verification_config.py',
      'arguments.py',
    ),
  ):
    assert f'cascades/{name}' in names
  for name in ('sweeps/worker.py', 'tasks/catalog.py', 'tasks/task.py'):
    assert f'experiments/{name}' in names
  assert not [n for n in names if n.startswith(versions.OBSERVING_MODULES)]
  every = {
    path.relative_to(versions.ROOT).as_posix()
    for path in (versions.ROOT / 'cascades').rglob('*.py')
  }
  looks = every - names
  # Each entry of the list is there, and nothing else is left out.
  for entry in versions.OBSERVING_MODULES:
    assert [name for name in looks if name.startswith(entry)], entry
  assert all(name.startswith(versions.OBSERVING_MODULES) for name in looks)


def test_any_statement_of_any_module_is_of_the_hash(checkout):
  want = versions.source_hash(checkout)
  for name in (
    *('cascades/methods/registry.py', 'cascades/verification_config.py'),
    'experiments/tasks/catalog.py',
  ):
    file = checkout / name
    text = file.read_text()
    file.write_text(f'"""Other words."""\n# And a comment.\n{text}')
    assert versions.source_hash(checkout) == want
    file.write_text(f'{text}\n_X = 1\n')
    assert versions.source_hash(checkout) != want
    file.write_text(text)
  new = checkout / 'cascades/methods/new.py'
  new.write_text('X = 1\n')
  assert versions.source_hash(checkout) != want
  new.rename(checkout / 'cascades/proof_of_it.py')
  assert versions.source_hash(checkout) != want
  (checkout / 'cascades/proof_of_it.py').rename(
    checkout / 'experiments/tasks/new.py'
  )
  assert versions.source_hash(checkout) != want
  (checkout / 'experiments/tasks/new.py').unlink()
  assert versions.source_hash(checkout) == want


@pytest.mark.parametrize(
  'text',
  [
    *('', '[]', 'null', '5', '{}', '{"version": 1}'),
    *('{"version": "1", "changelog": {}, "source": "", "results": ""}',),
    *('{"version": 1, "changelog": [], "source": "", "results": ""}',),
    *('{"version": 1, "changelog": {}, "source": null, "results": ""}',),
    *('{"version": 1, "changelog": {}, "source": "", "results": "", "a": 1}',),
  ],
)
def test_a_damaged_file_of_the_version_is_named(text, tmp_path, monkeypatch):
  file = tmp_path / 'results_version.json'
  monkeypatch.setattr(versions, 'FILE', file)
  for written in (text, None):
    file.unlink() if written is None else file.write_text(written)
    with pytest.raises(ValueError, match=f'^results_version: {file} cannot'):
      versions.read_accepted()


def test_code_is_described_in_words():
  old, new = 'a1' * 32, 'source ' + 'b2' * 32
  assert versions.describe('results version 3') == 'results version 3'
  assert versions.describe(new) == (
    'source b2b2b2b2b2b2, which belongs to no results version'
  )
  assert versions.describe(old) == (
    'source a1a1a1a1a1a1, which is older than results versions'
  )
  assert versions.is_version('results version 3')
  assert not versions.is_version(old)
  assert not versions.is_version(new)


# --- What is registered from outside ---

_OUTSIDE = """
from cascades import methods
import helper

SCALE = {scale}


def _target(d, lenience):
  return helper.same(d.p) * SCALE / SCALE


METHOD = methods.from_target(
  _target, name='outside', equation='', reference='', strict=0.0,
  drafter_only=None)
"""


def _module(folder, name, text):
  path = folder / f'{name}.py'
  path.write_text(text)
  spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  spec.loader.exec_module(module)
  return module


@pytest.fixture
def outside(tmp_path, monkeypatch):
  """A function that makes a method of a file, with a helper beside it."""

  def make(scale=1.0, same='x'):
    monkeypatch.setitem(sys.modules, 'outside_rule', None)
    monkeypatch.setitem(sys.modules, 'helper', None)
    _module(tmp_path, 'helper', f'def same(x):\n  return {same}\n')
    text = _OUTSIDE.format(scale=scale)
    return _module(tmp_path, 'outside_rule', text).METHOD

  return make


def test_methods_and_tasks_of_the_library_add_nothing():
  for method in methods.METHODS.values():
    assert external_code.hash_external(method) is None
  assert external_code.hash_external(*TASKS.values()) is None


def test_a_method_of_a_file_adds_the_hash_of_its_source(outside):
  want = external_code.hash_external(outside())
  assert want is not None
  assert external_code.hash_external(outside()) == want
  # Its own number, and a function that it takes from beside it.
  assert external_code.hash_external(outside(scale=2.0)) != want
  assert external_code.hash_external(outside(same='x + 0')) != want


def _method(rule):
  return methods.from_target(
    rule, name='m', equation='', reference='', strict=0.0, drafter_only=None
  )


def _share(d, lenience, share):
  return share * d.p + (1 - share) * d.p


def _metric(score):
  return Metric(name='m', help='', scores=('exact_match',), score=score)


@dataclasses.dataclass(frozen=True)
class _Share:
  share: float

  def __call__(self, d, lenience):
    return _share(d, lenience, self.share)


class _State:
  def __init__(self, share):
    self.share = share

  def __call__(self, d, lenience):
    return _share(d, lenience, self.share)


@pytest.mark.parametrize(
  'make',
  [
    lambda x: lambda d, lenience: _share(d, lenience, x),
    lambda x: functools.partial(_share, share=x),
    lambda x: _Share(x),
    lambda x: _State(x),
    lambda x: _Share(x).__call__,
    lambda x: lambda d, lenience, values=[1, {'x': x}]: d.p,
    lambda x: (lambda a: lambda d, lenience: a * d.p)(jnp.full(3, x)),
    lambda x: (lambda a: lambda d, lenience: a * d.p)(np.full(3, x)),
    lambda x: jax.jit(functools.partial(_share, share=x)),
  ],
)
def test_what_a_function_brings_along_is_of_its_hash(make):
  one, other = (
    external_code.hash_external(_method(make(x))) for x in (0.25, 0.5)
  )
  assert one != other
  assert external_code.hash_external(_method(make(0.25))) == one


def test_what_is_from_outside_is_told_apart():
  def method(rule):
    return methods.from_rule(
      rule, name='m', equation='', strict=2.0, drafter_only=0.0
    )

  speed, typed = methods.METHODS['speed'], {'jnp': jnp}
  exec('def f(d, lenience):\n  return jnp.abs(d.p)', typed)
  exec('def g(d, lenience):\n  return jnp.exp(d.p)', typed)
  for values in (
    # Functions of one module and name.
    [
      method(lambda d, lenience: d.q_gate.max(-1) < 0.1),
      method(lambda d, lenience: d.q_gate.max(-1) < 0.9),
    ],
    # Tasks with a score from outside.
    [
      dataclasses.replace(TASKS['numerals'], metrics=[_metric(score)])
      for score in (_State(0.1), _State(0.2), functools.partial(max, 1))
    ],
    # Changed methods of the library.
    [
      dataclasses.replace(speed, strict=0.5),
      dataclasses.replace(speed, strict=0.25),
      dataclasses.replace(speed, law=methods.METHODS['opt'].law),
    ],
    # Functions without a file.
    [typed['f'], typed['g']],
  ):
    found = [external_code.hash_external(value) for value in values]
    assert len({None, *found}) == len(found) + 1


def test_copies_and_longer_answers_add_nothing_and_what_is_shared_ends():
  assert not external_code.hash_external(
    dataclasses.replace(methods.METHODS['speed']),
    dataclasses.replace(TASKS['numerals'], max_new_tokens=99),
  )
  value = 0
  for _ in range(60):
    value = [value, value]
  assert external_code.hash_external(
    _method(functools.partial(_share, share=value))
  )


@pytest.mark.slow
def test_hashes_are_those_of_another_process():
  code = (
    'import versions_test as t\nfrom experiments.records import external_code\n'
    'print(external_code.hash_external(t._method(t._State({1.5, "x"}))))'
  )
  found = {
    subprocess.run(
      [sys.executable, '-c', code],
      cwd=pathlib.Path(__file__).parent,
      env=os.environ | {'PYTHONHASHSEED': seed},
      capture_output=True,
      text=True,
      check=True,
    ).stdout
    for seed in '12'
  }
  assert len(found) == 1
  assert len(found.pop().strip()) == 64


def test_a_point_of_a_method_from_outside_is_named_by_it(outside):
  def name(method):
    curve = curve_plan.Curve.from_config({}, 'token_v3', (0.3,))
    config = curve.config.replace(method=method)
    curve = dataclasses.replace(curve, config=config)
    examples = {'numerals': list(TASKS['numerals'].load(num_examples=2))}
    tasks = {'numerals': TASKS['numerals']}
    facts = {'code': 'results version 1'}
    (point,) = plan.plan_points({}, [curve], tasks, examples, facts)
    return point.name

  assert name(outside()) == name(outside()) != name(outside(scale=3.0))


# --- Accepting a source ---


@pytest.fixture
def accepting(tmp_path, monkeypatch):
  """Copies of what the command writes; runs its tests by a given function."""
  files = tmp_path / 'version.json', tmp_path / 'results.json'
  files[0].write_text(
    '{"version": 1, "changelog": {"1": "a"}, "source": "", "results": ""}'
  )
  files[1].write_text('old')
  monkeypatch.setattr(versions, 'FILE', files[0])
  monkeypatch.setattr(versions, 'RESULTS', files[1])

  def accept(run, change=None):
    monkeypatch.setattr(
      accept_command.subprocess,
      'run',
      lambda command, cwd: types.SimpleNamespace(returncode=run(command)),
    )
    monkeypatch.setattr(
      accept_command, '_CHANGE', types.SimpleNamespace(value=change)
    )
    accept_command.main()

  return accept, *files


def test_a_source_is_accepted_and_with_other_results_begins_a_version(
  accepting,
):
  accept, _, results = accepting
  accept(lambda command: 0)
  found = versions.read_accepted()
  assert (found.version, results.read_text()) == (1, 'old')
  assert found.source == versions.source_hash()
  assert found.results == versions.results_hash()

  def run(command):
    if '-c' in command:
      results.write_text('new')
    return 0

  accept(run, 'b')
  assert results.read_text() == 'new'
  found = versions.read_accepted()
  assert (found.version, found.changelog) == (2, {'1': 'a', '2': 'b'})
  assert found.results == versions.results_hash()


@pytest.mark.parametrize('fails', ['-c', '-m'])
def test_what_fails_accepts_nothing(accepting, fails):
  accept, version, results = accepting
  before = version.read_text()

  def run(command):
    if '-c' in command:
      results.write_text('half')
    return int(fails in command)

  with pytest.raises(ValueError, match=r'^change: the text is empty'):
    accept(lambda command: 0, ' ')
  with pytest.raises(ValueError, match=r'^accept: the results differ from'):
    accept(run, 'b')
  assert results.read_text() == 'old'
  assert version.read_text() == before
