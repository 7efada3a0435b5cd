"""Names and docstrings of the code, counted by `ast`."""

import ast
import functools
import pathlib

import pytest

_ROOT = pathlib.Path(__file__).parents[1]

# Words that are not names: participles; pronouns, question words, prepositions;
# and words of this project that the field does not use.
_PARTICIPLES = """
  agreeing asked begun built chosen drawn dropped found given going gone got
  held judged kept known laid listed living made meant packaged passed put
  remembered said seen sees sent settled shown speaking spelled taken taught
  told tried wanted written
""".split()
_PARTICLES = """
  again ahead alone among apart behind beside beyond each elsewhere every he
  hers here his how its least many mine most of one other others ours own same
  several she single such that them there these they this those us we what
  where which who whole whom whose why
""".split()
_PRIVATE = """
  _sources absorb Answer arms ask Ask Asked Asking assistants author Bank bars
  Boxed Branches chains chances Choice contests cooler Cut cuts Decoder digits
  draft_apart Ending endings equip Equipped equipped floors Found fresh Handle
  heads Info is_four journal judging kinds last_of_kind Leaf least_kept Lesson
  likeliest lines live Loaded LOOK may_pass middle Need normalised note
  of_first of_full one_of Options Order others_say pairing panels pieces
  places Plain plain_scales price Processing Question roles Scheme Seen slack
  speculators spread Stored tally taps Taught tersely trial_rows turn turned
  Usage viewed wording
""".split()
_WORDS = {*_PARTICIPLES, *_PARTICLES, *_PRIVATE}
# Names of the list that stay, by file, scope and name, with the reason.
_OPERAND = "Python's own convention for the second operand"
_VERDICT = 'a verdict, and a field of saved results'
_PIECES = "SentencePiece's word for the entries of a vocabulary"
_AUDITS = 'cascades/contrib/engine_audits'
_ALLOWED: dict[tuple[str, str, str], str] = {
  **{
    (f'{_AUDITS}/branching.py', f'Uniform.__{name}__', 'other'): _OPERAND
    for name in 'add gt lt mul rsub sub truediv'.split()
  },
  (f'{_AUDITS}/engines.py', 'Certificate', 'passed'): _VERDICT,
  (f'{_AUDITS}/traces.py', 'Certificate', 'passed'): _VERDICT,
  (f'{_AUDITS}/traces.py', 'Drift', 'spread'): 'a field of saved certificates',
  ('cascades/models/tokenizer_files.py', 'from_json', 'pieces'): _PIECES,
  ('cascades/models/tokenizers.py', '_serialize', 'pieces'): _PIECES,
  ('cascades/models/tokenizers.py', 'from_pieces', 'pieces'): _PIECES,
  ('cascades/models/tokenizers.py', 'strip_non_text', 'pieces'): _PIECES,
  ('cascades/models/turns.py', 'Template._parts', 'roles'): (
    'the roles of the messages of a chat'
  ),
  ('cascades/models/turns.py', '_write_frame', 'roles'): (
    'the roles of the messages of a chat'
  ),
  ('cascades/proof/audit.py', 'AuditResult', 'passed'): _VERDICT,
  ('cascades/proof/law_checks.py', 'Check', 'passed'): _VERDICT,
  ('cascades/proof/law_checks.py', '_check_errors', 'passed'): _VERDICT,
  ('cascades/untrusted/schema.py', '', 'one_of'): (
    'a validator: the field must be one of the values'
  ),
}
_MOST_ALLOWED = 150

_OPENERS = 'What How Whether Of As Where Or Who'.split()
# Offenders that are left, by rule.
_MOST_OPENERS = {'cascades': 0, 'experiments': 0, 'tests': 0}

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def _modules(*folders: str) -> dict[str, ast.Module]:
  """Returns the syntax trees of a folder's modules by path."""
  return {
    str(path.relative_to(_ROOT)): ast.parse(path.read_text(encoding='utf-8'))
    for folder in folders
    for path in sorted((_ROOT / folder).rglob('*.py'))
  }


def _defined(node: ast.AST) -> str | None:
  """Returns the name that a node defines, if it defines one."""
  match node:
    case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
      return node.name
    case ast.arg():
      return node.arg
    case ast.Name(ctx=ast.Store()):
      return node.id
    case ast.Attribute(ctx=ast.Store()):
      return node.attr
    case ast.ExceptHandler():
      return node.name
  return None


def banned_names(path: str, tree: ast.Module) -> set[tuple[str, str, str]]:
  """Returns (path, scope, name) of each definition on the list of words."""
  names = set()

  def visit(node: ast.AST, scope: str) -> None:
    for child in ast.iter_child_nodes(node):
      name = _defined(child)
      if name and {name, name.strip('_')} & _WORDS:
        names.add((path, scope, name))
      is_scope = isinstance(child, (*_FUNCTIONS.__args__, ast.ClassDef))
      visit(child, f'{scope}.{child.name}'.strip('.') if is_scope else scope)

  visit(tree, '')
  if pathlib.Path(path).stem in _WORDS:
    names.add((path, '', 'module'))
  return names


def openers(path: str, tree: ast.Module) -> list[str]:
  """Returns a line for each docstring that opens with a question word."""
  offenders = []
  for node in ast.walk(tree):
    if isinstance(node, (*_FUNCTIONS.__args__, ast.ClassDef, ast.Module)):
      first, *_ = (ast.get_docstring(node) or '-').split('\n')
      if first.split()[0] in _OPENERS:
        offenders.append(f'{path}:{getattr(node, "lineno", 1)} {first}')
  return offenders


def test_names_are_of_the_field():
  modules = _modules('cascades', 'experiments').items()
  names = set().union(*(banned_names(path, tree) for path, tree in modules))
  assert not sorted(names - {*_ALLOWED}), 'rename these, or say why they stay'
  assert not sorted({*_ALLOWED} - names), 'these are gone; drop their reasons'


def test_few_names_are_allowed_and_each_has_a_reason():
  assert len(_ALLOWED) <= _MOST_ALLOWED
  assert all(len(reason) > 10 for reason in _ALLOWED.values())


@pytest.mark.parametrize('folder', _MOST_OPENERS)
def test_docstrings_open_with_a_verb_or_a_noun(folder):
  lines = [x for item in _modules(folder).items() for x in openers(*item)]
  assert len(lines) <= _MOST_OPENERS[folder], '\n'.join(lines)


def test_what_is_counted():
  code = '''
"""A module."""
class Found:
  """What it found."""
  def said(self, how, rows):
    """Returns rows."""
    (self.kept, x), *one = rows
    return f(rows) or one
  def g(self): return [_own for _own in x]
'''
  tree = ast.parse(code)
  names = {name for *_, name in banned_names('here.py', tree)}
  assert names == {'Found', 'said', 'how', 'kept', 'one', '_own', 'module'}
  assert openers('x.py', tree) == ['x.py:3 What it found.']
