"""Notebooks run as in Colab, and their two halves say the same."""

import json
import os
import pathlib
import sys
import venv

import pytest

_ASK = "pip install -e '.[test-all]'"
jupytext = pytest.importorskip('jupytext', reason=_ASK)
nbclient = pytest.importorskip('nbclient', reason=_ASK)
nbformat = pytest.importorskip('nbformat', reason=_ASK)
pytestmark = pytest.mark.slow
_FOLDER = pathlib.Path(__file__).parent.parent / 'notebooks'
# What a reader should come to see.
_SAYS = {
  'drafters_with_vmap': ('batch (2, 3, 5) = [prompts, drafts, ', '4 drafts:'),
  'from_scratch': ('tokens per block', 'image/png'),
  'lenience_sweep': ('image/png', 'is_certified', 'as fast as token_v3@0.8'),
  'predict': ('image/png', 'token_v3: ', 'verifier text', 'acceptance'),
  'quickstart': (r'\x1b[32m', 'acceptance rate', 'image/png'),
  'your_own_pair': (
    '12 rows of runs/captions.jsonl',
    '6 of 6 texts are those of the verifier alone',
    *('were drafted and accepted', 'image/png'),
    'No setting that may lose quality could be certified',
    '12 rows are a rehearsal: they certify nothing',
    '4 of 4 answers have the tokens of the sweep',
  ),
}
_NOTEBOOKS = [_FOLDER / f'{name}.ipynb' for name in _SAYS]
# Fewer prompts and points than a reader has: texts of cells, and what takes
# their place.
_SMALLER = {
  'lenience_sweep': {
    "config.num_examples = ('word_problems',), 100": (
      "config.num_examples = ('word_problems',), 16; config.clock = 0"
    ),
    '(-1.0, 0.1, 0.4, 1.0)': '(-1.0, 0.4)',
    '(-1.0, 0.5, 0.8, 1.0)': '(-1.0, 0.8)',
  },
  'predict': {'=60': '=16', 'max_new_tokens=96': 'max_new_tokens=48'},
  'your_own_pair': {
    "VERIFIER = 'gemma3-270m'": "VERIFIER = 'tiny-verifier'",
    "'gemma3-270m-multi30k-de-en'": "'tiny-drafter'",
    'MAX_NEW_TOKENS = 32': 'MAX_NEW_TOKENS = 8',
    # The verifier alone, strict decoding and a cascade.
    'overrides={})': 'overrides={})[::2]',
  },
}


@pytest.mark.parametrize('path', _NOTEBOOKS, ids=lambda p: p.stem)
def test_the_pair_is_in_step(path):
  script = jupytext.read(path.with_suffix('.py'))
  notebook = nbformat.read(path, as_version=4)
  assert [(c.cell_type, c.source) for c in script.cells] == [
    (c.cell_type, c.source) for c in notebook.cells
  ]
  # Outputs belong to whoever runs it.
  assert not any(c.get('outputs') for c in notebook.cells)


# What a kernel starts with in Colab: a stand-in for its module, of which JAX
# imports `output`.
_STAND_IN = (
  'import sys, types;'
  " colab = types.ModuleType('google.colab');"
  " colab.output = types.ModuleType('google.colab.output');"
  " sys.modules['google.colab'] = colab"
)


def _run(notebook, folder: pathlib.Path, kernel: str) -> str:
  """Runs a notebook in a folder, and returns its outputs as text."""
  where = {'metadata': {'path': folder}}
  client = nbclient.NotebookClient(
    notebook, timeout=300, kernel_name=kernel, resources=where
  )
  # The checkout of the tests is not importable there.
  client.execute(env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'})
  return str([c.get('outputs') for c in notebook.cells])


@pytest.fixture(scope='session')
def colab(tmp_path_factory):
  """The Python of an environment as Colab has it, without this project."""
  folder = tmp_path_factory.mktemp('colab')
  venv.create(folder / 'env', with_pip=True)
  (site,) = (folder / 'env').glob('lib/python*/site-packages')
  # Folders of a .pth file are searched, but their own .pth files, of which one
  # is this project's if it is editable, are not read.
  lines = [path for path in sys.path if path.endswith('-packages')]
  (site / 'colab.pth').write_text('\n'.join([*lines, _STAND_IN]) + '\n')
  python = folder / 'env/bin/python'
  spec = folder / 'kernels/colab/kernel.json'
  spec.parent.mkdir(parents=True)
  command = [str(python), '-m', 'ipykernel_launcher', '-f', '{connection_file}']
  fields = dict(argv=command, display_name='x', language='python')
  spec.write_text(json.dumps(fields))
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('JUPYTER_PATH', str(folder))
    yield python


@pytest.mark.parametrize('path', _NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs_in_colab(path, tmp_path, colab):
  notebook = nbformat.read(path, as_version=4)
  changes = {"REPOSITORY = ''": f'REPOSITORY = {str(_FOLDER.parent)!r}'}
  for old, new in (changes | _SMALLER.get(path.stem, {})).items():
    assert path.stem == 'from_scratch' or any(
      old in cell.source for cell in notebook.cells
    )
    for cell in notebook.cells:
      cell.source = cell.source.replace(old, new)
  text = _run(notebook, tmp_path, 'colab')
  for said in (*_SAYS[path.stem], 'CpuDevice'):
    assert said in text
  if not (tmp_path / 'speculative-cascades').exists():
    assert path.stem == 'from_scratch'
    return
  # What was installed is the wheel, and the wheel is the library alone.
  (site,) = colab.parents[1].glob('lib/python*/site-packages')
  assert (site / 'cascades/__init__.py').exists()
  assert not (site / 'experiments').exists()


def test_the_first_cell_finds_the_checkout_around_it():
  notebook = nbformat.read(_FOLDER / 'predict.ipynb', as_version=4)
  first = next(c for c in notebook.cells if c.cell_type == 'code')
  first.source += '\nimport configs, experiments.tasks as t; print(t.__file__)'
  notebook.cells = [first]
  wanted = str(_FOLDER.parent / 'experiments/tasks/__init__.py')
  for folder in (_FOLDER, _FOLDER.parent):
    assert wanted in _run(notebook, folder, 'python3')
