"""The generated parts of README.md are what would be generated today."""

import pathlib

import pytest

from experiments import readme

_README = pathlib.Path(__file__).parent.parent / 'README.md'


def test_generated_parts_are_fresh():
  text = _README.read_text(encoding='utf-8')
  assert readme.render(text) == text, 'run python -m experiments.readme'


def test_a_part_without_a_place_is_named():
  with pytest.raises(
    ValueError, match=f'no place for {next(iter(readme.PARTS))}'
  ):
    readme.render('# cascades')
