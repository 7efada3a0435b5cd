"""Terms that go with what is made of a model which has some.

What begins as a model's layers, or learns from what it says, is a derivative of
it. Its folder has the terms' words, a notice, and a card that says so; this
project's own licence does not cover it.
"""

import pathlib

from cascades.models import checkpoints, package_index
from experiments import records

_OWN = 'apache-2.0'
_SAID = """
It {did},
and so is a derivative of it:
{terms}.
This project's own licence does not cover it; see LICENSE and NOTICE.
"""
_MODIFIED = """
This is a modification: parts of it, trained on what it says, without its
embedding table.
"""
_LEARNT = """
This is a derivative: none of its weights, trained on what it says.
"""


def put(
  folder: pathlib.Path, verifier: str, of_weights: bool = True
) -> dict[str, str]:
  """Puts a licence and a notice beside what was made of a model.

  Args:
    folder: Of what was made.
    verifier: What it was made of. Beside what is made of the bundled ones, or
      of those of which nothing is known, nothing is put.
    of_weights: Whether it has weights of the verifier, or only learnt from it.

  Returns:
    What a card says: `licence`, a line of its head or '', and `terms`.
  """
  if verifier not in package_index.MODELS:
    own = verifier in checkpoints.BUNDLED
    return {'licence': f'license: {_OWN}\n' if own else '', 'terms': ''}
  of = package_index.MODELS[verifier]
  notice = of.notice + (_MODIFIED if of_weights else _LEARNT)
  records.write_text(folder / 'NOTICE', notice)
  records.write_text(folder / 'LICENSE', of.licence.read_text('utf-8'))
  did = f'learnt what `{verifier}` says'
  if of_weights:
    did = f"is made of `{verifier}`'s weights and learnt what that says"
  said = _SAID.format(did=did, terms=of.terms)
  return {'licence': 'license: gemma\n', 'terms': said}
