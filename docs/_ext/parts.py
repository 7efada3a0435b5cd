"""Parts of pages: tables, outputs of commands, drawings, and formulas."""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import diagrams
import inventory
from docutils import nodes
from docutils.statemachine import StringList
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class GeneratedTable(SphinxDirective):
  """A table of what the code declares, such as methods or fields.

  Its content is for readers of the Markdown, who see no table.
  """

  required_arguments = 1
  has_content = True

  def run(self) -> list[nodes.Node]:
    """Returns the table, in a box that scrolls on a narrow screen."""
    name = self.arguments[0]
    if name not in inventory.TABLES:
      raise self.error(
        f'{name}: must be a table; there are {", ".join(inventory.TABLES)}.'
      )
    lines = inventory.TABLES[name]().splitlines()
    container = nodes.container(classes=['generated', name])
    self.state.nested_parse(
      StringList(lines, source=f'table {name}'), 0, container
    )
    return [container]


class Output(SphinxDirective):
  """Commands, lines that begin with $, and what they print where it is built.

  The output in the page is an earlier one, for readers of the Markdown. An
  argument names a file that has the page's block of Python before it.
  """

  optional_arguments = 1
  has_content = True

  def run(self) -> list[nodes.Node]:
    """Returns the commands with their output; fails as a command does."""
    source, line = self.get_source_info()
    page = pathlib.Path(source).read_text(encoding='utf-8').splitlines()
    blocks = re.findall(
      r'^```python\n(.*?)^```', '\n'.join(page[:line]), re.M | re.S
    )
    shown = []
    with tempfile.TemporaryDirectory() as folder:
      for name in self.arguments:
        (pathlib.Path(folder) / name).write_text(blocks[-1], encoding='utf-8')
      for command in self.content:
        if command.startswith('$ '):
          shown += [command, *self._lines(command[2:], folder)]
    text = '\n'.join(shown)
    return [nodes.literal_block(text, text, language='console')]

  def _lines(self, command: str, folder: str) -> list[str]:
    python, *rest = shlex.split(command)
    env = os.environ | {'PYTHONPATH': str(inventory.ROOT)}
    done = subprocess.run(
      [sys.executable if python == 'python' else python, *rest],
      capture_output=True,
      text=True,
      cwd=folder,
      env=env,
    )
    if done.returncode:
      raise self.error(f'{command}: {done.stderr[-500:]}')
    return done.stdout.strip('\n').splitlines()


class Terms(SphinxDirective):
  """A glossary with a line `term: definition` per term."""

  has_content = True

  def run(self) -> list[nodes.Node]:
    """Returns the glossary, whose terms the role `term` links to."""
    lines = ['```{glossary}']
    for line in self.content:
      term, _, definition = line.partition(': ')
      lines += [term, f'  {definition}', '']
    container = nodes.container()
    source, _ = self.get_source_info()
    self.state.nested_parse(
      StringList([*lines, '```'], source=source), 0, container
    )
    return container.children


class Diagram(SphinxDirective):
  """A drawing of `diagrams.py`, inline so that its colours are the theme's."""

  required_arguments = 1
  has_content = True

  def run(self) -> list[nodes.Node]:
    """Returns a figure; the content of the directive is its caption."""
    name = self.arguments[0]
    if name not in diagrams.DRAWINGS:
      raise self.error(
        f'{name}: must be a drawing; there are {", ".join(diagrams.DRAWINGS)}.'
      )
    figure = nodes.container(classes=['diagram'])
    figure += nodes.raw('', diagrams.DRAWINGS[name](), format='html')
    caption = nodes.container(classes=['caption'])
    self.state.nested_parse(self.content, self.content_offset, caption)
    figure += caption
    return [figure]


def _mathml(translator, node: nodes.math) -> None:
  """Writes a formula as MathML, which browsers draw without scripts."""
  is_block = isinstance(node, nodes.math_block)
  tree = latex2mathml.tex2mathml(node.astext(), as_block=is_block)
  translator.body.append(
    f'<div class="formula">{tree}</div>' if is_block else tree
  )
  raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
  """Registers the directives and the renderer."""
  app.add_directive('generated', GeneratedTable)
  app.add_directive('diagram', Diagram)
  app.add_directive('output', Output)
  app.add_directive('terms', Terms)
  app.add_html_math_renderer('mathml', (_mathml, None), (_mathml, None))
  return {'parallel_read_safe': True}
