"""Notebooks run, and their two halves say the same."""

import pathlib

import pytest

_ASK = "pip install 'cascades[test-all]'"
jupytext = pytest.importorskip('jupytext', reason=_ASK)
nbclient = pytest.importorskip('nbclient', reason=_ASK)
nbformat = pytest.importorskip('nbformat', reason=_ASK)
pytestmark = pytest.mark.slow
_FOLDER = pathlib.Path(__file__).parent.parent / 'notebooks'
_NOTEBOOKS = sorted(_FOLDER.glob('*.ipynb'))
# What a reader should come to see.
_SAYS = {
  'agreement': ('acceptance rate', 'image/png', 'passes of the verifier for'),
  'drafters_with_vmap': (
    'batch (2, 3, 5) = [prompts, drafts, length + 1]',
    '4 drafts:',
  ),
  'from_scratch': ('tokens per block', 'image/png'),
  'lenience_sweep': (
    'image/png',
    'at most 0.1 lost, in 90% of all cases',
    'over token_v3 at',
    '  faster ',
    'p_holm',
  ),
  'quickstart': ('acceptance rate', 'image/png'),
  'your_own_pair': (
    'want the same token at',
    '12 of 12 texts are the same',
    'was drafted and kept',
    'speed-up:',
    'lenience  0.95: BLEU',
    'image/png',
  ),
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


@pytest.mark.parametrize('path', _NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs(path, tmp_path):
  notebook = nbformat.read(path, as_version=4)
  client = nbclient.NotebookClient(
    notebook, timeout=300, resources={'metadata': {'path': tmp_path}}
  )
  client.execute()
  text = str([c.get('outputs') for c in notebook.cells])
  for said in _SAYS[path.stem]:
    assert said in text


def test_there_are_notebooks():
  assert {path.stem for path in _NOTEBOOKS} == set(_SAYS)
