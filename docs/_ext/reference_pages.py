"""Writes the pages of the API reference: what each shows is listed here.

Names are shown with the modules that define them, so that annotations link to
them; the list on the first page has the short names of `cascades`.
"""

import inspect
import pathlib
import pkgutil

import plain_docstrings
from sphinx.application import Sphinx

import cascades
from cascades import arguments

# Title of each page, and its names or whole modules; those without a prefix
# are of `cascades`.
PAGES = {
  'names': (
    'Decoding and methods',
    'sampler.sampler.Sampler sampler.requests.SampleRequest'
    ' sampler.sampler.SampleOutput sampler.sampler.ConversationState'
    ' config.DecodingConfig presets decisions.Decision'
    ' models.checkpoints.load_model'
    ' models.chat.Conversation sampler.scoring.explain methods.method'
    ' sampler.predicting.predict sampler.predicting.Prediction'
    ' sampler.predicting.Point'
    ' methods.register methods.get_acceptance_residual_fns',
  ),
  'extensions': (
    'Extension points',
    'decoding.drafter decoding.model.Model drafters.unbound.UnboundDrafter'
    ' drafters.parse drafters.ngram.NgramDrafter'
    ' drafters.language_model.SelfSpeculative'
    ' drafters.language_model.DraftModel drafters.recurrent.RecurrentHead'
    ' drafters.eagle3.EagleHead drafters.assistant.Assistant'
    ' models.language.LanguageModel models.checkpoints.open_checkpoint'
    ' verification_config.Verification verification.inputs'
    ' experiments.tasks.task'
    ' experiments.tasks.answer_metrics.Metric',
  ),
  'audits': (
    'Audits',
    'proof.audit.audit proof.audit.AuditResult proof.law_checks.Check'
    ' contrib.engine_audits.engines contrib.engine_audits.traces',
  ),
}


def _heading(title: str, underline: str) -> list[str]:
  return [title, underline * len(title), '']


def _full(name: str) -> str:
  return name if name.startswith('experiments.') else f'cascades.{name}'


def _kind(name: str) -> str:
  value = pkgutil.resolve_name(name)
  if inspect.ismodule(value):
    return 'module'
  return 'class' if inspect.isclass(value) else 'function'


def _page(title: str, names: str) -> str:
  lines = _heading(title, '=')
  for name in map(_full, names.split()):
    lines += [*_heading(name, '-'), f'.. auto{_kind(name)}:: {name}', '']
  return '\n'.join(lines)


def _index() -> str:
  """Returns the first page: names of `cascades`, and the other pages."""
  lines = _heading('API reference', '=')
  lines += ['These names are attributes of ``cascades``:', '']
  for name in sorted(cascades.__all__):
    value = getattr(cascades, name)
    if hasattr(value, '__qualname__'):
      home = f'{value.__module__}.{value.__qualname__}'
      lines.append(f'- :py:obj:`cascades.{name} <{home}>`')
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
  if what != 'class' or not issubclass(obj, arguments.Declared):
    return
  lines.append('')
  for option, declaration in arguments.options_of(obj).items():
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
