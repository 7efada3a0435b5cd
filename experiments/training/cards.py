"""Model cards, and the licences of models that derive from a licensed model.

A model that starts as layers of a licensed model, or learns from its
distributions, is a derivative. Its folder has the licence's text, a notice, and
a card that names both; this project's own licence does not cover it.
"""

import json
import pathlib

import jax
from ml_collections import ConfigDict

from cascades.models import checkpoints
from experiments import measuring, records

_CARD = """---
{licence}library_name: cascades
---

# {name}

{intro}

Retrain: `{command}`, with these fields:

```json
{fields}
```

On {device}, of held-out examples:

{table}

Use: `{use}`.
{terms}"""
_PROJECT_LICENCE = 'apache-2.0'
_TERMS = """
It {relation},
and so is a derivative of it:
{terms}.
This project's own licence does not cover it; see LICENSE and NOTICE.
"""
_MODIFIED = """
This is a modification: it has parts of the original, trained on the original's
output, without the embedding table.
"""
_DISTILLED = """
This is a derivative: it has no weights of the original, and was trained on the
original's output.
"""


def write(
  folder: pathlib.Path,
  config: ConfigDict,
  command: str,
  figures: dict[str, dict[str, float]],
  *,
  intro: str,
  use: str,
  has_weights: bool = True,
) -> None:
  """Writes the card of a model, and the licence files that it needs."""
  fields = config.to_dict()
  # A path of this machine.
  fields.pop('text', None)
  rows = [
    {'of': group, 'score': name, 'value': f'{value:.3f}'}
    for group, scores in figures.items()
    for name, value in scores.items()
  ]
  text = _CARD.format(
    name=folder.name,
    intro=intro,
    command=command,
    fields=json.dumps(fields, indent=2),
    device=jax.devices()[0].device_kind,
    table=measuring.table(rows),
    use=use,
    **_licence(folder, config.get('verifier', ''), has_weights),
  )
  records.write_text(folder / 'README.md', text)


def _licence(
  folder: pathlib.Path, verifier: str, has_weights: bool
) -> dict[str, str]:
  """Writes the licence and notice of a derivative into its folder."""
  if verifier not in checkpoints.MODELS:
    is_ours = not verifier or verifier in checkpoints.BUNDLED
    licence = f'license: {_PROJECT_LICENCE}\n' if is_ours else ''
    return {'licence': licence, 'terms': ''}
  original = checkpoints.MODELS[verifier]
  notice = original.notice + (_MODIFIED if has_weights else _DISTILLED)
  records.write_text(folder / 'NOTICE', notice)
  records.write_text(folder / 'LICENSE', original.licence.read_text('utf-8'))
  relation = f'learned the output of `{verifier}`'
  if has_weights:
    relation = f"is made of `{verifier}`'s weights and learned its output"
  terms = _TERMS.format(relation=relation, terms=original.terms)
  return {'licence': 'license: gemma\n', 'terms': terms}
