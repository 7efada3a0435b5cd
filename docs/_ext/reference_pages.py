"""Writes the pages of the API reference: what each shows is listed here.

A page shows the modules that define its names, so that annotations link to
them; the list on the first page has the short names of `cascades`.
"""

import pathlib

import plain_docstrings
from sphinx.application import Sphinx

import cascades
from cascades import declarations

# Title and modules of each page; modules without a prefix are of `cascades`.
PAGES = {
  'sampler': (
    'Sampler',
    'sampler.sampler sampler.outputs sampler.requests sampler.batching'
    ' sampler.scoring sampler.explanations sampler.agreement sampler.stopping'
    ' sampler.memory',
  ),
  'config': (
    'Options and decisions',
    'config verification_config declarations decisions registries',
  ),
  'methods': (
    'Methods',
    'methods.method methods.cascade methods.relaxed methods.baselines'
    ' methods.registry methods.processing contrib.learned',
  ),
  'verification': (
    'Verification',
    'verification verification.verify verification.verdict'
    ' verification.verification_inputs verification.single_draft'
    ' verification.multi_draft verification.traversal contrib.look_ahead',
  ),
  'drafters': (
    'Drafters',
    'decoding.drafter drafters.drafter_spec drafters.drafter_kinds'
    ' drafters.binding drafters.language_model_spec drafters.ngram_spec'
    ' drafters.self_speculative_spec drafters.recurrent.recurrent_spec'
    ' drafters.eagle.eagle_spec drafters.assistant.assistant_spec'
    ' contrib.chains.chain_spec',
  ),
  'models': (
    'Models',
    'models models.checkpoints models.language models.conversations'
    ' models.tokenizers models.checkpoint_formats'
    ' models.checkpoint_source',
  ),
  'decoding': (
    'The loop',
    'decoding decoding.state decoding.step_config decoding.reading'
    ' decoding.propose'
    ' decoding.verify_block decoding.commit decoding.step decoding.loop'
    ' decoding.rows decoding.block_stats decoding.faults',
  ),
  'proof': (
    'Audits',
    'proof proof.audit proof.law_checks proof.enumeration'
    ' contrib.engine_audits.engines contrib.engine_audits.traces',
  ),
  'experiments': (
    'Extension points of experiments',
    'experiments.tasks experiments.tasks.task experiments.tasks.task_spec'
    ' experiments.tasks.answer_metrics experiments.tasks.sources'
    ' experiments.tasks.phrasing experiments.records.metrics'
    ' experiments.records.record_schema'
    ' experiments.records.unit_costs',
  ),
}


def _heading(title: str, underline: str) -> list[str]:
  return [title, underline * len(title), '']


def _module(name: str) -> str:
  return name if name.startswith('experiments.') else f'cascades.{name}'


def _page(title: str, modules: str) -> str:
  lines = _heading(title, '=')
  for name in map(_module, modules.split()):
    lines += _heading(name, '-')
    # Names that a package imports are shown where they are defined.
    lines += [f'.. automodule:: {name}', '   :ignore-module-all:', '']
  return '\n'.join(lines)


def _index() -> str:
  """Returns the first page: names of `cascades`, and the other pages."""
  lines = _heading('API reference', '=')
  lines += [
    'These names are attributes of ``cascades``; all other names are imported',
    'from the modules that the pages below show.',
    '',
  ]
  documented = {
    _module(name) for _, modules in PAGES.values() for name in modules.split()
  }
  for name in sorted(cascades.__all__):
    value = getattr(cascades, name)
    home = getattr(value, '__module__', None)
    if home in documented and hasattr(value, '__qualname__'):
      lines.append(f'- :py:obj:`cascades.{name} <{home}.{value.__qualname__}>`')
  lines += ['', '.. toctree::', '   :maxdepth: 1', '']
  return '\n'.join([*lines, *(f'   {name}' for name in PAGES), ''])


def write(app: Sphinx) -> None:
  """Writes pages that differ from those that are there."""
  folder = pathlib.Path(app.srcdir) / 'reference'
  folder.mkdir(exist_ok=True)
  texts = {name: _page(*page) for name, page in PAGES.items()}
  for name, text in {**texts, 'index': _index()}.items():
    path = folder / f'{name}.rst'
    if not path.exists() or path.read_text(encoding='utf-8') != text:
      path.write_text(text, encoding='utf-8')


def _skip(app, what, name, obj, skip, options):
  """Leaves out fields of named tuples, which `Attributes` describes."""
  return skip or type(obj).__name__ == '_tuplegetter'


def _describe_options(app, what, name, obj, options, lines):
  """Adds the help of the options that a class declares to its attributes."""
  if what != 'class' or not issubclass(obj, declarations.Declared):
    return
  lines.append('')
  for option, declaration in declarations.options_of(obj).items():
    field = f':ivar {option}:'
    text = f'{field} {plain_docstrings.escape(declaration.help)}'
    documented = [i for i, line in enumerate(lines) if line.startswith(field)]
    if documented:
      lines[documented[0]] = text + lines[documented[0]].removeprefix(field)
    else:
      lines.append(text)


def setup(app: Sphinx) -> dict[str, bool]:
  """Registers the extension."""
  app.connect('builder-inited', write)
  app.connect('autodoc-skip-member', _skip)
  # Runs after napoleon wrote the attributes.
  app.connect('autodoc-process-docstring', _describe_options, priority=600)
  return {'parallel_read_safe': True}
