"""Checks of samples from the compiled loop against known laws."""

from collections.abc import Iterator, Sequence

import jax
import numpy as np

from cascades import decoding, drafters, verification
from cascades.methods import processing
from cascades.proof import exact
from cascades.proof.law_checks import AuditSpec, Check

# Smallest z-score that fails.
_MAX_Z = 5.0
# Sampled sequences: number of tokens after the prompt, the prompt, size of the
# vocabulary, and gamma.
_NEW, _PROMPT, _SIZE, _GAMMA = 3, (1, 2, 3), 5, 3


def check_samples(
  spec: AuditSpec,
  samples: int,
  configs: Sequence[verification.VerificationConfig],
) -> Iterator[Check]:
  """Compares many sampled sequences with the declared law."""
  model = exact.TableModel.injective(_SIZE, _GAMMA)
  keys = jax.random.split(jax.random.key(spec.seed), 3)
  leniences = _sampled_leniences(spec)
  sampling = processing.SamplingParams(temperature=np.float32(1))
  # Flat tables: a fault would be hidden if the first tokens were certain.
  tables, d = exact.random_models(
    model, keys[:2], sampling, prompt=_PROMPT, depth=_GAMMA, scale=1.0
  )
  table = exact.Table.from_methods([(spec.method, x) for x in leniences], d)
  declared = exact.declared_law(table, model, _PROMPT, _NEW)
  models = decoding.Models(model, drafters.ModelDrafter(model))
  request = exact.BatchRequest(
    [_PROMPT] * samples, jax.random.split(keys[2], samples), leniences, _NEW
  )
  for config in configs:
    drafts = 1 + config.kind.any_drafts
    try:
      config.check(spec.method, drafts)
    except ValueError:
      continue
    step_config = decoding.StepConfig(
      models=models,
      method=spec.method,
      gamma=_GAMMA,
      verification=config,
      drafts=drafts,
    )
    # No row stops, so that all rows have exactly _NEW new tokens.
    rows = exact.decode_curve(step_config, tables, request, sampling)
    tokens = rows.tokens[:, :, len(_PROMPT) : len(_PROMPT) + _NEW]
    laws = declared
    if not config.kind.keeps_law:
      # Such a verification declares a law of blocks, not of tokens.
      laws = exact.emitted_law(
        table, config, model, _PROMPT, length=_NEW, gamma=_GAMMA
      )
    yield _compare(config.verification, leniences, tokens, laws)


def _compare(
  verified: str,
  leniences: Sequence[float],
  tokens: np.ndarray | jax.Array,
  laws: np.ndarray,
) -> Check:
  """Compares samples with their laws, by the largest z-score."""
  tokens = np.asarray(tokens)
  scores = [
    np.abs(exact.z_scores(tokens[:, i], law)) for i, law in enumerate(laws)
  ]
  worst = int(np.argmax([z.max() for z in scores]))
  z = float(scores[worst].max())
  detail = ''
  if z >= _MAX_Z:
    detail = _describe(leniences[worst], tokens[:, worst], laws[worst])
  return Check(
    name=f'sampled law, {verified} verification: largest z',
    passed=z < _MAX_Z,
    value=z,
    detail=detail,
    limit=_MAX_Z,
    leniences=tuple(leniences),
  )


def _sampled_leniences(spec: AuditSpec) -> list[float]:
  """Selects up to two leniences from the middle of the reported ones.

  A method's limits prove least: they are selected only if all are limits.
  """
  ends = (spec.method.strict, spec.method.drafter_only)
  inner = [x for x in spec.reported if x not in ends] or list(spec.reported)
  return inner[: len(inner) // 2 + 1][-2:]


def _describe(lenience: float, tokens: np.ndarray, law: np.ndarray) -> str:
  """Lists declared probabilities and frequencies of each first token."""
  first = law.sum(tuple(range(1, law.ndim)))
  counts = np.bincount(tokens[:, 0], minlength=len(first))
  return '\n'.join(
    [
      f'lenience {lenience:g}, first token of {len(tokens)} samples:',
      'declared   ' + ' '.join(f'{x:.4g}' for x in first),
      'drawn      ' + ' '.join(f'{x:.4g}' for x in counts / len(tokens)),
    ]
  )
