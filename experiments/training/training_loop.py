"""The loop of every training: checkpoints and a log; then a card.

Every batch is a function of (seed, step): an interrupted run resumes from its
last checkpoint with the same result, and one seed gives one model.

A drafter that starts as layers of a licensed model, or learns from its
distributions, is a derivative. Its folder has the licence's text, a notice, and
a card that names both; this project's own licence does not cover it.
"""

import json
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from cascades import Sampler, drafters, files, load_model
from cascades.config import DecodingConfig
from cascades.models import checkpoints
from experiments import cli, measuring, records
from experiments.training import distillation_data

_CARD = """---
{licence}library_name: cascades
---

# {name}

A drafter for `{verifier}`: {kind}

Retrain: `{command}`, with these fields:

```json
{fields}
```

On {device}, of held-out examples:

{table}

Use: `cascades.Sampler('{verifier}', '{name}')`.
{terms}"""
_LAYERS = """some of its layers, trained on, with its embedding table, which is
not in this folder. It drafts the frequent tokens of answers, and reads all."""
_HEAD = """a recurrent head (Cheng, Zhang et al. 2024, arXiv 2403.09919) on its
last hidden state. It shares the embedding table of that model only."""
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


def fit(
  config: ConfigDict,
  workdir: pathlib.Path,
  params: Any,
  optimizer: optax.GradientTransformation,
  rows: distillation_data.Rows,
  loss_fn: Callable[..., tuple[jax.Array, dict[str, jax.Array]]],
  batch: Callable[[int, distillation_data.Rows], Sequence[Any]],
) -> Any:
  """Minimizes a loss, resuming from the last checkpoint if there is one."""
  name, steps = config.name, config.steps

  @jax.jit
  def update(state, *batch):
    grad = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, figures), grads = grad(state['params'], *batch)
    updates, opt_state = optimizer.update(
      grads, state['opt_state'], state['params']
    )
    params = optax.apply_updates(state['params'], updates)
    return {'params': params, 'opt_state': opt_state}, {'loss': loss} | figures

  state = {'params': params, 'opt_state': jax.jit(optimizer.init)(params)}
  leaves, structure = jax.tree.flatten(state)
  file = workdir / f'checkpoints/{name}.npz'
  saved = np.load(file) if file.exists() else {'step': 0}
  first = int(saved['step'])
  # Those that determine the result; the file of the rows has their hash.
  fields = {
    field: value
    for field, value in config.to_dict().items()
    if not field.startswith(('eval_', 'log_', 'checkpoint_'))
    and field != 'text'
  }
  fields['hidden'] = pathlib.Path(rows.hidden.filename).stem
  records.claim(workdir / f'{name}.json', fields, 'training', bool(first))
  if first:
    # numpy knows no bfloat16, whose bits it keeps.
    arrays = [saved[str(i)].view(x.dtype) for i, x in enumerate(leaves)]
    state = structure.unflatten(arrays)
  with (
    cli.progress(steps, name, initial=first) as bar,
    (workdir / f'{name}.jsonl').open('a') as log,
  ):
    for step in range(first, steps):
      state, figures = update(state, *batch(step, rows.sample(config, step)))
      done = step + 1
      if done % config.log_every == 0 or done == steps:
        figures = {k: np.asarray(v).tolist() for k, v in figures.items()}
        postfix = {k: f'{np.ravel(v)[0]:.4f}' for k, v in figures.items()}
        bar.set_postfix(postfix, refresh=False)
        line = dict(step=done, time=time.time(), **figures)
        print(json.dumps(line), file=log, flush=True)
      if done % config.checkpoint_every == 0 or done == steps:
        arrays = map(np.asarray, jax.tree.leaves(state))
        named = {str(i): x for i, x in enumerate(arrays)}
        with files.replace_file(file) as part:
          np.savez(part, step=done, **named)
      bar.update()
  return state['params']


def write_card(
  folder: pathlib.Path, config: ConfigDict, command: str
) -> dict[str, dict[str, float]]:
  """Evaluates a drafter; writes its card, and the licence files it needs."""
  figures = _evaluate(folder, config)
  fields = config.to_dict()
  # A path of this machine.
  fields.pop('text', None)
  rows = [
    {'held out': name} | {k: f'{x:.3f}' for k, x in scores.items()}
    for name, scores in figures.items()
  ]
  has_weights = 'depth' not in config
  text = _CARD.format(
    name=folder.name,
    verifier=config.verifier,
    kind=_LAYERS if has_weights else _HEAD,
    command=command,
    fields=json.dumps(fields, indent=2),
    device=jax.devices()[0].device_kind,
    table=measuring.table(rows),
    **_licence(folder, config.verifier, has_weights),
  )
  records.write_text(folder / 'README.md', text)
  return figures


def _evaluate(
  folder: pathlib.Path, config: ConfigDict
) -> dict[str, dict[str, float]]:
  """Measures acceptance and tokens per call of strict decoding, held out."""
  documents = distillation_data.load_documents(config)
  prompts = distillation_data.held_out_prompts(config, documents)
  models = load_model(config.verifier), drafters.load(str(folder))
  # With more rows at a time, logits of many tokens exceed a CPU's cache.
  strict = dict(method='speed', lenience=0.0, batch_size=8)
  figures = {}
  for temperature in (1.0, 0.0):
    options = DecodingConfig(
      **strict, gamma=config.eval_gamma, temperature=temperature
    )
    answers = Sampler(*models, config=options).sample(
      prompts, max_new_tokens=config.answer_length, stop_strings=('\n',)
    )
    accepted, examined, calls = (
      sum(answer.counts[name] for answer in answers)
      for name in ('accepted', 'examined', 'verifier_calls')
    )
    emitted = sum(len(answer.logprobs) for answer in answers)
    figures[f'temperature {temperature:g}'] = {
      'acceptance': accepted / examined,
      'tokens per verifier call': emitted / calls,
    }
  return figures


def _licence(
  folder: pathlib.Path, verifier: str, has_weights: bool
) -> dict[str, str]:
  """Writes the licence and notice of a derivative into its folder."""
  if verifier not in checkpoints.MODELS:
    is_ours = verifier in checkpoints.BUNDLED
    return {'licence': 'license: apache-2.0\n' * is_ours, 'terms': ''}
  original = checkpoints.MODELS[verifier]
  notice = original.notice + (_MODIFIED if has_weights else _DISTILLED)
  records.write_text(folder / 'NOTICE', notice)
  records.write_text(folder / 'LICENSE', original.licence.read_text('utf-8'))
  relation = f'learned the output of `{verifier}`'
  if has_weights:
    relation = f"is made of `{verifier}`'s weights and learned its output"
  terms = _TERMS.format(relation=relation, terms=original.terms)
  return {'licence': 'license: gemma\n', 'terms': terms}
