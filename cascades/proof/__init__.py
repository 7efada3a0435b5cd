"""Whether a method does what it declares.

  table_models  Small language models whose laws are known.
  separation    Distributions that no proof can take for each other.
  trial_rows    Distributions of many kinds to try a method on.
  tabulated     What methods say of every context, as tables.
  enumeration   Laws by going through every block that can be emitted.
  sampled       Laws by drawing from the compiled loop.
  exact         All of the above under one name, for tests and audits.
  audit         Of a method somebody wrote: a verdict, and examples.

Audits of other engines are in `cascades.contrib.engine_audits`.
"""

import importlib
import warnings

_MOVED = ('branching', 'engines', 'traces')


def __getattr__(name: str):
  if name not in _MOVED:
    raise AttributeError(f'module {__name__} has no attribute {name!r}')
  place = f'cascades.contrib.engine_audits.{name}'
  warnings.warn(
    f'{__name__}.{name} is {place} now; import it from there.',
    DeprecationWarning,
    stacklevel=2,
  )
  return importlib.import_module(place)
