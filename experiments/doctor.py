"""Names why drafts are rejected, from second readings of answers.

Strict decoding accepts a draft with probability sum_v min(q, p). Both models
read answers of the verifier. Then the drafter reads them in other ways: at
another temperature, with another first token, template, position or window; a
head from other hidden states. A way is the cause if its gain per token is large
enough, and if the intervals over answers of the gain, and of its lead over the
other causes, exclude 0, at level 1 % for all ways together.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy import stats

from cascades import Sampler, decoding
from cascades.methods.processing import SamplingParams
from cascades.models.language import LanguageModel
from cascades.models.tokenizers import BOS, SPACE
from cascades.sampler import batching, sampler, scoring

# Level of all tests of a kind; permutations of one at half of it, and the
# distance of the positions that it compares.
_LEVEL, _PERMUTATIONS, _STRIDE = 0.01, 200, 4
# Least gains; any drafter gains a little at another temperature.
_GAIN, _TEMPERATURE_GAIN, _CHANGE = 0.01, 0.03, 0.1
# Temperatures of the drafter, relative to the sampler's.
_RATIOS = 1.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1 / 0.9, 1.25, 1 / 0.7, 1 / 0.6, 2.0
# Acceptance of equal models, and relative differences of their hidden states.
_EQUAL, _DIFFERENT = 0.95, 0.1


class Diagnosis(NamedTuple):
  """A cause of low acceptance, and a sentence with figures and advice."""

  cause: str
  sentence: str


def _hidden(model, params, tokens, layers=()):
  """Returns a model's hidden states of a text, and its cache."""
  cache = model.init_cache(params, len(tokens))
  options = tokens, jnp.int32(0), None, layers
  return decoding.read_hidden(model, params, cache, *options)[1:]


def _head_logits(model, drafter, layers, params, tokens):
  """Returns the logits of a head's drafts after each token, [L, V]."""
  (verifier, head), zero = params, jnp.int32(0)
  hidden, cache = _hidden(model, verifier, tokens, layers)
  state, last = drafter.init(head, len(tokens)), zero + len(tokens) - 1
  state = drafter.observe(head, state, tokens[1:], hidden[:-1], zero, last)

  def draft_at(index):
    text = tokens, index + 1, hidden[index - 1], cache
    options = jax.random.key(0), SamplingParams(), zero > 0
    context = decoding.DraftContext(*text, *options)
    draft, *_ = drafter.propose(head, state, context, gamma=1, drafts=1)
    return draft.logits_at(0, 0, model.vocab_size)

  positions = jnp.arange(len(tokens))
  return jax.vmap(draft_at, axis_name=decoding.ROWS)(positions)


@functools.partial(jax.jit, static_argnames=('model', 'size'))
def _read(params, rows, *, model, size):
  """Returns the states of texts at some indices, [A, N, D]."""

  def read_row(row):
    tokens, indices = row
    return _hidden(model, params, tokens)[0][indices]

  return jax.lax.map(read_row, rows, batch_size=size)


@functools.partial(jax.jit, static_argnames=('model', 'reader', 'size'))
def _overlap(params, sampling, rows, *, model, reader, size):
  """Returns sum_v min(q, p) at each ratio, and min(1, q / p) of tokens."""

  def read_row(row):
    text, indices, *scored = row
    if isinstance(reader, functools.partial):
      states, unembed = reader(params, text), lambda _, logits: logits
    else:
      states, unembed = _hidden(reader, params[1], text)[0], reader.unembed

    def values(x):
      token, p_state, q_state = x
      q, p = unembed(params[1], q_state), model.unembed(params[0], p_state)
      d = decoding.distributions(q, p, sampling)
      q = jax.nn.softmax(jnp.log(d.q) / jnp.array(_RATIOS)[:, None])
      accepted = jnp.minimum(1, d.q[token] / d.p[token])
      return jnp.minimum(q, d.p).sum(-1), accepted

    at_once = max(1, 2**20 // (model.vocab_size * size))
    scored, at_once = (*scored, states[indices]), min(len(indices), at_once)
    return jax.lax.map(values, scored, batch_size=at_once)

  return jax.lax.map(read_row, rows, batch_size=size)


def _layout(texts, contexts, offset=0):
  """Returns tokens, [A, L], and the indices of states, [A, N]."""
  joined = [[*x, *y] for x, (_, y) in zip(contexts, texts, strict=True)]
  size = batching.bucket(max(map(len, joined)))
  count = batching.bucket(max(len(y) for _, y in texts), 32)
  before = np.array([[len(x) - 1] for x in contexts])
  indices = np.clip(before + offset + np.arange(count), 0, size - 1)
  return batching.pad(joined, size, size)[0], indices


def diagnose(
  decoder: Sampler,
  texts: Sequence[scoring.Request],
  other_contexts: Sequence[Sequence[int]] | None = None,
) -> tuple[list[Diagnosis], pd.DataFrame]:
  """Names what lowers the acceptance of a language model or a head.

  Args:
    decoder: The verifier and the drafter, at the temperature of the answers.
    texts: Contexts and the verifier's own answers, in token ids; 40 or more.
    other_contexts: The contexts without the chat template if they have it, else
      with it; None if there is no template.

  Returns:
    Causes, none for a sound pair; and the ten tokens and kinds of tokens with
    the most rejections, with their count and acceptance.
  """
  contexts, answers = zip(*texts, strict=True)
  reader, tree, ways = _ways(decoder, contexts, other_contexts)
  model, params, _ = decoder.verifier
  # A row of a head has logits at all its positions.
  is_head = isinstance(reader, functools.partial)
  size = 1 if is_head else min(len(texts), decoder.config.batch_size)
  states = _read(params, _layout(texts, contexts), model=model, size=size)
  tokens, _ = batching.pad(answers, states.shape[1], states.shape[1])
  is_answer = np.arange(tokens.shape[1]) < [[len(y)] for y in answers]
  fixed = (params, tree), decoder.sampling_params(decoder.suppress_tokens)

  def accept(reader=reader, contexts=contexts, **options):
    rows = *_layout(texts, contexts, **options), tokens, states
    options = dict(model=model, reader=reader, size=size)
    return [np.array(x)[is_answer] for x in _overlap(*fixed, rows, **options)]

  overlaps, accepted = accept()
  rows, before = np.nonzero(is_answer)[0], overlaps[:, 0]
  names = [f'temperature {decoder.config.temperature * x:.2g}' for x in _RATIOS]
  results = [('temperature', *x) for x in zip(names, overlaps.T, strict=True)]
  results += [(x, y, accept(**z)[0][:, 0]) for x, y, z in ways]
  pairs = (model, params), (reader, tree)
  diagnoses = _loading(pairs, texts[0], before.mean())
  diagnoses += _clear_cause(results, rows)
  diagnoses += _change(before, rows, np.array([*map(len, contexts)]))
  pieces = [decoder.tokenizer.piece(i) for x in answers for i in x]
  names = [*map(repr, pieces), *map(_kind, pieces)]
  frame = pd.DataFrame(dict(name=names, accepted=np.tile(accepted, 2)))
  table = frame.groupby('name').accepted.agg(count='size', acceptance='mean')
  rejections = table['count'] * (1 - table.acceptance)
  return diagnoses, table.loc[rejections.nlargest(10).index]


def _ways(decoder, contexts, other_contexts):
  """Returns the drafter as a model, its parameters and other ways to read."""
  bound, model = decoder.bound_drafter, decoder.verifier.model
  drafter, tree = bound
  if not sampler.is_language_model(bound):
    layers, config = drafter.hidden_layers, model.module.config
    last = config.num_layers
    near = [tuple(x + i for x in layers or (last,)) for i in (-1, 0, 1)]
    near = {x for x in near if 0 <= min(x) <= max(x) <= last}
    near = {*near, *[()] * (len(layers) == 1)} - {layers}
    # Layers of Gemma 3n pass on several states; n-grams read none.
    if hasattr(config, 'num_altup_inputs') or not drafter.needs_hidden:
      near = set()
    change = 'hidden states after layers {}'.format
    head = functools.partial(functools.partial, _head_logits, model, drafter)
    ways = [('layers', change(x or 'all'), dict(reader=head(x))) for x in near]
    return head(layers), tree, ways
  model = drafter.model
  never = [x[x[0] == BOS :] for x in contexts]
  twice = [[BOS, *x] for x in contexts]
  ways = [
    ('first token', 'no <bos>', dict(contexts=never)),
    ('first token', 'one more <bos>', dict(contexts=twice)),
    ('positions', 'states of previous tokens', dict(offset=-1)),
    ('positions', 'states of next tokens', dict(offset=1)),
  ]
  if other_contexts is not None:
    form = dict(contexts=other_contexts)
    ways.append(('chat template', 'the other form of prompts', form))
  config = model.module.config if isinstance(model, LanguageModel) else None
  window = getattr(config, 'sliding_window_size', None)
  for size in (window // 2, 2 * window) if window else ():
    changed = dataclasses.replace(config, sliding_window_size=size)
    module = dataclasses.replace(model.module, config=changed)
    wide = dataclasses.replace(model, module=module)
    ways.append(('sliding window', f'a window of {size}', dict(reader=wide)))
  if getattr(drafter, 'adaptive', False):
    tree, _ = tree
  return model, tree, ways


def _gain(difference, rows, comparisons=1):
  """Returns a mean difference per token, and its interval over answers."""
  sums, sizes = np.bincount(rows, difference), np.bincount(rows)
  count, gain = len(sums), difference.mean()
  error = np.linalg.norm(sums - gain * sizes) / len(rows)
  error *= (count / (count - 1)) ** 0.5
  reach = error * stats.t.ppf(1 - _LEVEL / comparisons / 2, count - 1)
  return gain, gain - reach, gain + reach


def _clear_cause(results, rows) -> list[Diagnosis]:
  """Names the way with the largest gain over the first, if it is clear."""
  test = functools.partial(_gain, rows=rows, comparisons=len(results))
  (*_, before), *_ = results
  minima = {'temperature': _TEMPERATURE_GAIN}
  ways = [(*test(x[-1] - before), *x) for x in results]
  ways = [x for x in ways if x[0] >= minima.get(x[3], _GAIN) and x[1] > 0]
  if not ways:
    return []
  gain, low, high, cause, change, best = max(ways, key=lambda x: x[0])
  rivals = [x[-1] for x in ways if x[3] != cause]
  if not all(test(best - x)[1] > 0 for x in rivals):
    return []
  sentence = (
    f'With {change} the drafter is accepted at {best.mean():.2f} per token, not'
    f' {before.mean():.2f} (gain {gain:.3f} [{low:.3f}, {high:.3f}],'
    f' {rows[-1] + 1} answers): correct its {cause}.'
  )
  return [Diagnosis(cause, sentence)]


def _change(before, rows, starts) -> list[Diagnosis]:
  """Names a position at which acceptance changes within answers."""
  index = np.arange(len(rows)) - np.searchsorted(rows, rows)

  def within(values):
    """Returns what answers and their n-th tokens do not share."""
    for groups in index, rows:
      means = np.bincount(groups, values) / np.bincount(groups)
      values = values - means[groups]
    return values

  rest = within(before)

  def largest(starts):
    at = starts[rows] + index
    results = []
    for position in range(at.min() + _STRIDE, at.max(), _STRIDE):
      late = within((at >= position).astype(float))
      if (size := late @ late) > 1:
        results.append(((late @ rest) ** 2 / size, position, late))
    return max(results, key=lambda x: x[0], default=(0.0, 0, rest))

  (score, position, late), rng = largest(starts), np.random.default_rng(0)
  draws = [largest(rng.permutation(starts))[0] for _ in range(_PERMUTATIONS)]
  if not position or max(draws) >= score:
    return []
  size, count = late @ late, len(starts)
  gain = late @ rest / size
  errors = np.bincount(rows, late * (rest - gain * late)) / size
  reach = np.linalg.norm(errors) * stats.t.ppf(1 - _LEVEL / 2, count - 1)
  is_late = starts[rows] + index >= position
  change = before[is_late].mean() - before[~is_late].mean()
  # A fault shows in the means too, whatever the answers have in common.
  if min(abs(gain), change * np.sign(gain)) < max(_CHANGE, reach):
    return []
  sentence = (
    f'The drafter is accepted at {before[is_late].mean():.2f} from position'
    f' {position} on, and at {before[~is_late].mean():.2f} before it (change'
    f' {gain:.3f} [{gain - reach:.3f}, {gain + reach:.3f}] beyond what answers'
    f' share, {count} answers): check its window, its positions and its cache.'
  )
  return [Diagnosis('change at a position', sentence)]


def _loading(pairs, text, acceptance) -> list[Diagnosis]:
  """Names the first layer that differs, of two models of one shape."""
  configs = [x.module.config for x, _ in pairs if isinstance(x, LanguageModel)]
  # Layers of Gemma 3n pass on several states.
  configs = [x for x in configs if not hasattr(x, 'num_altup_inputs')]
  shapes = {(x.num_layers, x.embed_dim) for x in configs}
  if acceptance >= _EQUAL or not len(configs) > len(shapes) == 1:
    return []
  ((depth, width),) = shapes
  tokens, layers = np.array([*text[0], *text[1]]), tuple(range(depth + 1))
  read = jax.jit(_hidden, static_argnums=(0, 3))
  states = [np.float32(read(x, y, tokens, layers)[0]) for x, y in pairs]
  states = [x.reshape(-1, depth + 1, width) for x in states]
  change = np.linalg.norm(states[1] - states[0], axis=(0, 2))
  far = change > _DIFFERENT * np.linalg.norm(states[0], axis=(0, 2))
  layer = f'layer {far.argmax()}' if far.any() else 'the last norm'
  sentence = (
    "The drafter has the verifier's shape, but is accepted at"
    f' {acceptance:.2f} per token, and its hidden states differ after {layer}:'
    ' if they are one model, check how each is loaded.'
  )
  return [Diagnosis('loading', sentence)]


def _kind(piece: str) -> str:
  """Returns the kind of a token."""
  text = piece.replace(SPACE, ' ')
  if len(text) > 1 and text[0] + text[-1] in ('<>', '[]'):
    return 'special tokens'
  if '\n' in text:
    return 'line ends'
  tests = dict(digits=str.isdigit, letters=str.isalpha, punctuation=str.strip)
  return next((k for k, f in tests.items() if any(map(f, text))), 'spaces')
