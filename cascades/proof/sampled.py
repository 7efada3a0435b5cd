"""Samples of the compiled loop, and their distance from the declared law."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree
from scipy import special

from cascades import decoding, drafters, methods, verification
from cascades.methods import processing
from cascades.proof import enumeration, table_models
from cascades.proof.law_checks import Check
from cascades.sampler import batching

# Largest p-value that fails.
_LEVEL = 1e-5
# Sampled sequences: number of tokens after the prompt, the prompt, size of the
# vocabulary, and gamma.
_NEW, _PROMPT, _SIZE, _GAMMA = 3, (1, 2, 3), 5, 3
# Sums of less variance are far from normal.
_MIN_VARIANCE = 5.0
# Distance from 0 and from 1 that float32 rounds w to.
_ROUNDING = 1e-6


def decode_curve(
  step_config: decoding.StepConfig,
  params: Sequence[PyTree],
  request: batching.BatchRequest,
  sampling: processing.SamplingParams,
  *,
  stop_tokens: Sequence[int] | np.ndarray = (-1,),
  capacity: int | None = None,
) -> decoding.Row:
  """Decodes every prompt at every lenience in one compiled loop."""
  prompts, keys, leniences, new, *_ = request
  # One lenience a prompt, or each prompt at all of them.
  is_paired = isinstance(leniences, np.ndarray)
  leniences = np.asarray(leniences, np.float32)
  engine = batching.Engine(
    step_config,
    decoding.Params(*params),
    sampling,
    np.asarray(stop_tokens, np.int32),
  )
  # Prompts are padded to few lengths, so that few programs are compiled.
  longest = -(-max(map(len, prompts)) // 8) * 8
  capacity = capacity or new
  rows = engine.prefill(
    prompts,
    keys,
    [len(prompt) + new for prompt in prompts],
    longest + capacity + step_config.cache_headroom,
    logits_length=request.return_logits * (capacity + step_config.gamma + 1),
    with_logprobs=request.return_logprobs,
  )
  shape = (len(prompts),)
  if not is_paired:
    shape = len(prompts), len(leniences)
    repeated = np.repeat(np.arange(len(prompts)), len(leniences))
    rows = decoding.gather_rows(rows, repeated)
    leniences = np.tile(leniences, len(prompts))
  rows, _ = engine.decode(rows.replace(lenience=leniences))
  rows = rows.replace(
    verifier_cache=None, drafter_state=None, hidden=None, key=None
  )
  rows = jax.tree.map(lambda x: x.reshape(shape + x.shape[1:]), rows)
  return jax.device_get(rows)


def g_test(tokens: np.ndarray, law: np.ndarray) -> tuple[float, int]:
  """Computes the G-statistic of texts under a law, and its degrees of freedom.

  G = 2 sum n log(n / (N law)), with n the count of a text among N. It is the
  sum, over all prefixes, of the G of the tokens after the prefix. Texts with
  fewer than 5 expected counts are merged into one cell, with the next rarest
  until the cell has 5. A text of probability 0 that occurs has an infinite G.
  """
  counts = np.zeros(law.shape)
  np.add.at(counts, tuple(tokens.T), 1)
  if counts[law == 0].any():
    return np.inf, 1
  counts, expected = counts.ravel(), len(tokens) * law.ravel() / law.sum()
  order = np.argsort(expected)
  counts, expected = counts[order], expected[order]
  rare = (expected < 5) | (np.cumsum(expected) - expected < 5)
  counts = np.append(counts[~rare], counts[rare].sum())
  expected = np.append(expected[~rare], expected[rare].sum())
  degrees = max(len(counts) - 1, 1)
  # Williams's correction: without it small cells inflate the statistic.
  inverse = (len(tokens) / expected).sum() - 1
  correction = 1 + inverse / (6 * len(tokens) * degrees)
  statistic = 2 * special.rel_entr(counts, expected).sum() / correction
  return float(statistic), degrees


def check_samples(
  method: methods.Method,
  leniences: Sequence[float],
  samples: int,
  configs: Sequence[verification.VerificationConfig],
  seed: int = 0,
) -> Iterator[Check]:
  """Compares many sampled sequences with the declared law."""
  model = table_models.TableModel.injective(_SIZE, _GAMMA)
  keys = jax.random.split(jax.random.key(seed), 3)
  sampling = processing.SamplingParams(temperature=np.float32(1))
  # Flat tables: a fault would be hidden if the first tokens were certain.
  verifier, drafter = table_models.random_tables(model, keys[:2], scale=1.0)
  d = table_models.table_distributions(verifier, drafter, sampling)
  pairs = [(method, lenience) for lenience in leniences]
  table = table_models.Table.from_methods(pairs, d)
  declared = enumeration.declared_law(table, model, _PROMPT, _NEW)
  models = decoding.Models(model, drafters.ModelDrafter(model))
  request = batching.BatchRequest(
    [_PROMPT] * samples, jax.random.split(keys[2], samples), leniences, _NEW
  )
  for config in configs:
    drafts = 1 + config.kind.any_drafts
    step_config = decoding.StepConfig(
      models=models,
      method=method,
      gamma=_GAMMA,
      verification=config,
      drafts=drafts,
    )
    # No row stops, so that all rows have exactly _NEW new tokens.
    rows = decode_curve(step_config, (verifier, drafter), request, sampling)
    tokens = np.asarray(rows.tokens[:, :, len(_PROMPT) : len(_PROMPT) + _NEW])
    laws = declared
    if not config.kind.keeps_law:
      # Such a verification declares a law of blocks, not of tokens.
      laws = enumeration.emitted_law(
        table, config, model, _PROMPT, length=_NEW, gamma=_GAMMA
      )
    tests = [g_test(tokens[:, i], law) for i, law in enumerate(laws)]
    limits = [special.chdtri(degrees, _LEVEL) for _, degrees in tests]
    excess = [g / limit for (g, _), limit in zip(tests, limits, strict=True)]
    worst, detail = int(np.argmax(excess)), ''
    if excess[worst] >= 1:
      first = laws[worst].sum(tuple(range(1, _NEW)))
      counts = np.bincount(tokens[:, worst, 0], minlength=_SIZE)
      detail = '\n'.join(
        [
          f'lenience {leniences[worst]:g}, first token of {samples} samples:',
          'declared   ' + ' '.join(f'{x:.4g}' for x in first),
          'drawn      ' + ' '.join(f'{x:.4g}' for x in counts / samples),
        ]
      )
    yield Check(
      name=f'sampled law, {config.verification} verification: largest G',
      passed=not detail,
      value=tests[worst][0],
      detail=detail,
      limit=float(limits[worst]),
      leniences=tuple(leniences),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceCheck:
  """The sources of examined tokens, against their probabilities w.

  Attributes:
    deciles: For each tenth of w: examined tokens, accepted drafts among them,
      and the expected number of these, the sum of w.
    p_value: Probability that a right engine deviates by more; 0 if a source is
      impossible.
    level: p-values below it fail.
    caught_from: The number of tokens from which on the p-value stays below the
      level; None if the check passed.
  """

  deciles: tuple[tuple[float, float, float], ...]
  p_value: float
  level: float
  caught_from: int | None

  @property
  def passed(self) -> bool:
    """True if the sources do not contradict w."""
    return self.caught_from is None

  def to_dict(self) -> dict[str, Any]:
    """Returns the check with values that JSON supports."""
    return {'passed': self.passed} | dataclasses.asdict(self)

  def __str__(self) -> str:
    tokens = sum(n for n, *_ in self.deciles)
    text = (
      f'sources of {tokens:.0f} examined tokens:'
      f' {"passed" if self.passed else "FAILED"} at level {self.level:g},'
      f' p-value {self.p_value:.2g}'
    )
    if not self.passed:
      text += f', caught from n = {self.caught_from}'
    for i, (n, accepted, expected) in enumerate(self.deciles):
      text += (
        f'\n  w from {i / 10} to {(i + 1) / 10}: {accepted:.0f} of {n:.0f}'
      )
      text += f' are accepted drafts, expected {expected:.1f}'
    return text


def check_sources(
  w: Sequence[float] | np.ndarray,
  accepted: Sequence[bool] | np.ndarray,
  level: float = 0.01,
) -> SourceCheck:
  """Tests the sources of emitted tokens at whose position a draft was examined.

  With token verification of one draft per block, such a token y is an accepted
  draft with probability w(y) = q(y) a(y) / pi(y), given the text up to y. Sums
  of 1[accepted] - w are therefore martingales, whatever the lengths of blocks.
  Their squared z-scores are summed over the deciles of w; those of little
  variance are pooled. An accepted draft at w = 0 fails at once, as does another
  token at w = 1.

  Args:
    w: [n], in order of time.
    accepted: [n], True for an accepted draft.
    level: Probability that a right engine fails.
  """
  w, accepted = np.asarray(w, np.float64), np.asarray(accepted, bool)
  w = np.where(w < _ROUNDING, 0, np.where(w > 1 - _ROUNDING, 1, w))
  in_decile = np.minimum(10 * w, 9).astype(int)[:, None] == np.arange(10)
  # After each number of tokens, [n, 10].
  excess, variance = (
    np.cumsum(in_decile * x[:, None], 0) for x in (accepted - w, w * (1 - w))
  )
  is_pooled = variance < _MIN_VARIANCE
  z2 = np.where(is_pooled, 0, excess**2 / np.maximum(variance, _MIN_VARIANCE))
  # The z-score of a pool of less variance is less.
  excess, variance = ((x * is_pooled).sum(1) for x in (excess, variance))
  statistic = z2.sum(1) + excess**2 / np.maximum(variance, _MIN_VARIANCE)
  degrees = np.maximum((~is_pooled).sum(1) + (variance > 0), 1)
  p_values = special.chdtrc(degrees, statistic)
  is_impossible = np.where(accepted, w == 0, w == 1)
  p_values[np.logical_or.accumulate(is_impossible)] = 0
  passes = np.append(True, p_values >= level)[::-1]
  counts = np.stack([np.ones(len(w)), accepted, w]) @ in_decile
  return SourceCheck(
    deciles=tuple(map(tuple, counts.T.tolist())),
    p_value=float(p_values[-1]),
    level=level,
    caught_from=None if passes[0] else len(passes) - int(passes.argmax()),
  )
