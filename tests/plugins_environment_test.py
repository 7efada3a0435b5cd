"""A package with one entry of each kind, installed into a fresh environment."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import tomllib
import types
import venv

import pandas as pd
import pytest
import small

from experiments import records

pytestmark = pytest.mark.slow

_SOURCE = small.FIXTURES / 'plugin_package'
_GROUPS = tomllib.loads((_SOURCE / 'pyproject.toml').read_text())['project'][
  'entry-points'
]
# Prints how each registry finds the entry of the package, 'ok' or the error.
_LOOK_UP = """
  import json
  import sys
  from cascades import drafters, methods, verification
  from cascades.models import builtin_formats
  from experiments import tasks

  found = {}
  for registry in (
    *(methods.METHODS, verification.VERIFICATIONS),
    *(drafters.DRAFTERS, builtin_formats.CHECKPOINT_FORMATS),
    *(tasks.TASKS, tasks.METRICS),
  ):
    try:
      registry.get(f'other_{registry.option}')
      found[registry.group] = registry.origin(f'other_{registry.option}')
    except ValueError as error:
      found[registry.group] = str(error)
  json.dump(found, sys.stdout)
"""


@pytest.fixture(scope='module')
def environment(tmp_path_factory):
  """A fresh environment with the package; it sees what is installed here.

  Returns:
    `python` runs a command of its Python, and `pip` one of pip on it.
  """
  folder = tmp_path_factory.mktemp('environment')
  venv.create(folder, with_pip=False)
  (packages,) = folder.glob('lib/python*/site-packages')
  # Its own packages come first. `addsitedir` also reads the .pth files there,
  # by which this project may be installed.
  here = sysconfig.get_path('purelib')
  (packages / 'here.pth').write_text(f'import site; site.addsitedir({here!r})')
  interpreter = folder / 'bin/python'

  def run(*command, check=True):
    done = subprocess.run(
      [*map(str, command)],
      cwd=small.ROOT,
      capture_output=True,
      text=True,
      check=False,
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done

  def python(*command, check=True):
    return run(interpreter, *command, check=check)

  def pip(*command):
    return run(
      sys.executable, '-m', 'pip', '--python', interpreter, '-q', *command
    )

  # Building leaves files in the source.
  source = shutil.copytree(_SOURCE, folder / 'source')
  pip('install', '--no-deps', '--no-build-isolation', '--no-index', source)
  assert (packages / 'other_package').is_dir()
  return types.SimpleNamespace(python=python, pip=pip, folder=folder)


def test_each_registry_finds_its_entry(environment):
  sources = [
    path.read_text(encoding='utf-8')
    for folder in ('cascades', 'experiments')
    for path in (small.ROOT / folder).rglob('*.py')
  ]
  options = re.findall(r"\bRegistry\(\s*'(\w+)'", '\n'.join(sources))
  # The package has an entry of each.
  assert {f'cascades.{option}s' for option in options} == {*_GROUPS}
  done = environment.python('-c', textwrap.dedent(_LOOK_UP))
  package = ['other-package', '1.0']
  assert json.loads(done.stdout) == dict.fromkeys(_GROUPS, package)


def test_options_are_in_the_help_without_importing_jax(environment):
  for flag in ('--help', '--helpfull'):
    done = environment.python(
      *('-X', 'importtime', '-m', 'experiments.sample', flag), check=False
    )
    text = ' '.join(done.stdout.split())
    assert '--other_window: Last tokens that another look-up compares' in text
    assert '--gamma: ' in text
    imported = {x.split('|')[-1].strip() for x in done.stderr.split('\n')}
    assert 'jax' not in imported


def test_the_tables_of_the_guides_have_the_entries(environment):
  code = (
    'from experiments.guides import inventory\n'
    "for name in ('methods', 'fields', 'tasks'):\n"
    '  print(inventory.TABLES[name]())'
  )
  table = environment.python('-c', code).stdout
  for row in (
    '| `other_method` | pi = lam q + (1 - lam) p for lam in [0, 1] | 0 | 1 |',
    '| `other_window=5` | Last tokens that another look-up compares. |',
  ):
    assert row in table
  # Tables of the project's own tasks and metrics.
  assert 'other_task' not in table


_DECODED = """
  import sys
  import pytest
  import cascades
  from experiments.sweeps import curve_plan, fields
  sys.path[:0] = ['tests']
  import small

  pair = small.pair()
  usual = dict(method='opt', lenience=0.1, gamma=2)

  def decode(drafter=pair[1], **options):
    sampler = small.sampler(pair[0], drafter, **usual | options)
    assert sampler.sample('The number 12', max_new_tokens=6).tokens
    return sampler

  assert 'other_package' not in sys.modules
  decode()
  assert 'other_package' not in sys.modules
  decode(method='other_method')
  decode(verification='other_verification')
  sampler = decode('other_drafter', other_window=2)
  assert sampler.bound_drafter.drafter.window == 2
  config = dict(usual, drafter='other_drafter', other_window=3)
  config['lenience'] = [0.1]
  curve = curve_plan.Curve.from_config(config, 'other_method', (0.1,))
  fields.check(config)
  assert dict(curve.drafter_options) == {'other_window': 3}
  for mistake in (
    lambda: fields.check(dict(config, other_window=0)),
    lambda: decode(other_window=0),
    lambda: decode('ngram', other_window=1),
  ):
    with pytest.raises(ValueError, match='^other_window: '):
      mistake()
"""


def test_entries_decode_and_are_recorded(environment):
  environment.python('-c', textwrap.dedent(_DECODED))


_CONFIG = """
import ml_collections
from configs import common


def get_config():
  return common.sweep(
    verifier={verifier!r},
    drafter='other_drafter',
    other_window=2,
    tasks=('other_task',),
    num_examples=4,
    batch_size=4,
    clock=0,
  )


def sweep(add):
  add('verifier_only', ())
  add(
    'other_method',
    (0.0, 0.5),
    gamma=2,
    verification='other_verification',
  )
"""


def test_a_sweep_uses_an_entry_of_each_kind(environment, tmp_path):
  folder = tmp_path / 'model'
  folder.mkdir()
  (folder / 'other_model.txt').write_text(small.pair()[0])
  config, workdir = tmp_path / 'config.py', tmp_path / 'run'
  config.write_text(_CONFIG.format(verifier=str(folder)))
  environment.python(
    *('-m', 'experiments.sweep', f'--config={config}', f'--workdir={workdir}')
  )
  summary = pd.read_csv(workdir / 'summary.csv')
  rows = summary[summary.method == 'other_method']
  assert rows.lenience.tolist() == [0.0, 0.5]
  for option, value in (
    ('task', 'other_task'),
    ('verification', 'other_verification'),
  ):
    assert {*rows[option]} == {value}
  for record in records.read_all(workdir):
    assert [*record.scores] == ['same_letters', 'exact_match']


# Test files that go through a registry, and the entries that they have to take.
_SHARED = dict(
  methods_test='other_method',
  decoding_test='other_verification',
  faults_test='other_verification',
  pairing_test='other_drafter',
  tasks_test='other_task',
  tasks_plugins_test='other_metric',
)
_PASSED = r'^PASSED tests/(\w+).py::.*\[.*?(other_[a-z_]+)'


def test_shared_tests_take_the_entries(environment):
  done = environment.python(
    *('-m', 'pytest', '-rp', '-m', '', '-p', 'no:cacheprovider'),
    *('-k', ' or '.join({*_SHARED.values()})),
    *(f'tests/{file}.py' for file in _SHARED),
  )
  passed = re.findall(_PASSED, done.stdout, re.M)
  for entry in _SHARED.items():
    assert entry in passed


def test_the_audit_passes_the_method(environment, tmp_path):
  done = environment.python(
    *('-m', 'experiments.audit', '--method=other_method', '--lenience=0,0.5'),
    *('--verification=other_verification', '--samples=2000'),
    f'--workdir={tmp_path}',
  )
  assert '1 of 1 passed' in done.stdout
  assert (tmp_path / 'other_method.json').is_file()


# The last test, since nothing is installed after it.
def test_without_the_package_its_names_are_not_known(environment):
  environment.pip('uninstall', '--yes', 'other-package')
  found = json.loads(environment.python('-c', textwrap.dedent(_LOOK_UP)).stdout)
  assert {*found} == {*_GROUPS}
  for group, sentence in found.items():
    option = group.removeprefix('cascades.').removesuffix('s')
    assert sentence.startswith(f"{option}: 'other_{option}' is not known; did")
  for flags, sentence in (
    (['--drafter=other_drafter'], "'other_drafter' is not a folder or a known"),
    (['--other_window=3'], "Unknown command line flag 'other_window'"),
    (['--method=other_method'], "method: 'other_method' is not known; did"),
  ):
    done = environment.python(
      '-m', 'experiments.sample', '--prompt=x', *flags, check=False
    )
    assert (done.returncode, done.stdout) == (2, '')
    assert sentence in done.stderr
    assert done.stderr.count('\n') == 1
