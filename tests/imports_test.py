"""A house of rooms: each imports only what stands above it."""

import ast
import pathlib

import pytest

import cascades
import experiments

_ROOT = pathlib.Path(__file__).parent.parent
_LIBRARY = sorted((_ROOT / 'cascades').rglob('*.py'))
_FILES = [*_LIBRARY, *sorted((_ROOT / 'experiments').rglob('*.py'))]


def _name(path: pathlib.Path) -> str:
  return str(path.relative_to(_ROOT))


def imported(path: pathlib.Path) -> set[str]:
  """Full names of what a file imports, anywhere in it."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      names |= {f'{node.module}.{alias.name}' for alias in node.names}
  return names


@pytest.mark.parametrize('path', _FILES, ids=_name)
def test_rooms_import_only_what_stands_above_them(path):
  layer, room, *_ = path.relative_to(_ROOT).with_suffix('').parts
  rooms = {'cascades': cascades.ROOMS, 'experiments': experiments.ROOMS}[layer]
  # A command stands below all rooms.
  above = rooms[: rooms.index(room) + 1] if room in rooms else rooms
  used = {n.split('.')[1] for n in imported(path) if n.startswith(f'{layer}.')}
  assert used <= {*above, *cascades.__all__} - {*rooms} | {*above}


@pytest.mark.parametrize('layer', [cascades, experiments])
def test_every_room_is_on_the_list(layer):
  folder = pathlib.Path(layer.__file__).parent
  assert {path.parent.name for path in folder.glob('*/__init__.py')} <= {
    *layer.ROOMS
  }
  assert [
    line.split()[0] for line in layer.__doc__.splitlines() if line[:2] == '  '
  ] == layer.ROOMS


@pytest.mark.parametrize('path', _FILES, ids=_name)
def test_gemma_is_imported_in_one_module_and_inside_functions(path):
  roots = {name.split('.')[0] for name in imported(path)}
  # Beside it, what calls gemma's own sampler, for comparisons.
  if path.name not in ('gemma_library.py', 'gemma_sampler.py'):
    assert 'gemma' not in roots
  for node in ast.parse(path.read_text()).body:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
      assert 'gemma' not in ast.unparse(node).split('.')[0]


def test_the_library_knows_no_flags_and_no_torch():
  for path in _LIBRARY:
    roots = {name.split('.')[0] for name in imported(path)}
    assert not roots & {'absl', 'configs', 'experiments', 'pickle', 'torch'}
