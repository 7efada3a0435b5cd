"""The guides: fresh where they are generated, and true where they point."""

import importlib.util
import pathlib
import re

import pytest

from experiments import readme

_TEXTS = {
  name: (readme.ROOT / name).read_text(encoding='utf-8')
  for name in readme.GUIDES
}
_ALL = pytest.mark.parametrize('guide', readme.GUIDES)


@_ALL
def test_generated_parts_are_fresh(guide):
  text = _TEXTS[guide]
  assert readme.render(text) == text, 'run python -m experiments.readme'


def test_every_part_has_one_place():
  placed = [name for text in _TEXTS.values() for name in readme.places(text)]
  assert sorted(placed) == sorted(readme.PARTS)


def test_a_place_for_no_part_is_named():
  with pytest.raises(ValueError, match='nothing: no such part; there are'):
    readme.render('<!-- nothing -->\n<!-- /nothing -->\n')


def test_a_place_without_an_end_is_named():
  with pytest.raises(ValueError, match='methods: its place does not end'):
    readme.render('# cascades\n\n<!-- methods -->\n')


def test_the_first_page_is_short():
  assert len(_TEXTS['README.md'].splitlines()) <= 200


@pytest.mark.parametrize('extra', ['[test]', '[test-all]'])
def test_the_lines_that_ci_runs_are_commands(extra):
  lines = _TEXTS['README.md'].splitlines()
  line = next(line for line in lines if extra in line)
  assert 'pip install' in line
  assert '-m pytest -n 2' in line


def _prose(text: str) -> str:
  """Without blocks of code, which may hold what looks like a link."""
  return re.sub(r'^```.*?^```$', '', text, flags=re.M | re.S)


def _anchors(text: str) -> set[str]:
  """What its headings are called in links."""
  headings = re.findall(r'^#+ (.*)$', _prose(text), re.M)
  return {
    re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')
    for heading in headings
  }


def _broken(folder: pathlib.Path, own: str) -> list[str]:
  """Links of a guide that lead nowhere.

  Args:
    folder: Of the guide.
    own: Its text.
  """
  found = []
  for link in re.findall(r'\]\(([^()\s]+)\)', _prose(own)):
    if re.match(r'\w+:', link):
      continue
    name, _, anchor = link.partition('#')
    path = folder / name
    there = path.exists()
    if there and anchor:
      text = path.read_text(encoding='utf-8') if name else own
      there = anchor in _anchors(text)
    if not there:
      found.append(link)
  return found


@_ALL
def test_links_lead_somewhere(guide):
  assert not _broken((readme.ROOT / guide).parent, _TEXTS[guide])


def test_a_link_that_leads_nowhere_is_found(tmp_path):
  (tmp_path / 'other.md').write_text("# One's own, two\n")
  text = (
    '## Here\n[a](#here) [b](other.md#ones-own-two) [c](https://x.org/y)\n'
    '```\n# There\n[d](nowhere.md)\n```\n'
    '[e](#there) [f](other.md#three) ![g](nowhere.png)\n'
  )
  assert _broken(tmp_path, text) == ['#there', 'other.md#three', 'nowhere.png']


@_ALL
def test_commands_name_modules_that_exist(guide):
  # A command may go on in the next line, after a backslash or in prose.
  text = _TEXTS[guide].replace('\\\n', ' ')
  for module in set(re.findall(r'python -m\s+([\w.]+)', text)):
    assert importlib.util.find_spec(module), module


@_ALL
def test_configs_and_files_that_are_named_exist(guide):
  text = _TEXTS[guide]
  named = re.findall(r'--config=(\S+?\.py)', text)
  rooms = 'cascades|configs|experiments|notebooks|tests'
  named += re.findall(rf'`((?:{rooms})/[\w./-]*)`', text)
  for path in set(named):
    assert (readme.ROOT / path).exists(), path


def test_the_proofs_name_tests_that_exist():
  for name in set(re.findall(r'`(\w+_test)\b', _TEXTS['tests/README.md'])):
    assert (readme.ROOT / f'tests/{name}.py').exists(), name
