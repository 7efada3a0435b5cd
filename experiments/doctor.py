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

# Level of all tests of a kind, and the distance of positions that are tested.
_LEVEL, _STRIDE = 0.01, 4
# Least gains; any drafter gains a little at another temperature.
_GAIN, _TEMPERATURE_GAIN, _CHANGE = 0.01, 0.03, 0.1
# Temperatures of the drafter, relative to the sampler's.
_RATIOS = 1.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1 / 0.9, 1.25, 1 / 0.7, 1 / 0.6, 2.0
# Acceptance of equal models, and relative differences of their hidden states.
_EQUAL, _DIFFERENT = 0.95, 0.1


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
) -> tuple[dict[str, str], pd.DataFrame]:
  """Names what lowers the acceptance of a language model or a head.

  Args:
    decoder: The verifier and the drafter, at the temperature of the answers.
    texts: Contexts and the verifier's own answers, in token ids; 40 or more.
    other_contexts: The contexts without the chat template if they have it, else
      with it; None if there is no template.

  Returns:
    A sentence with figures and advice for each cause, none for a sound pair;
    and the ten tokens and kinds of tokens with the most rejections, with their
    count and acceptance.
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
  causes = _loading(pairs, texts[0], before.mean())
  causes |= _clear_cause(results, rows)
  causes |= _change(before, rows, np.array([*map(len, contexts)]))
  pieces = [decoder.tokenizer.piece(i) for x in answers for i in x]
  names = [*map(repr, pieces), *map(_kind, pieces)]
  frame = pd.DataFrame(dict(name=names, accepted=np.tile(accepted, 2)))
  table = frame.groupby('name').accepted.agg(count='size', acceptance='mean')
  rejections = table['count'] * (1 - table.acceptance)
  return causes, table.loc[rejections.nlargest(10).index]


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
  contexts_of = {
    ('first token', 'no <bos>'): [x[x[0] == BOS :] for x in contexts],
    ('first token', 'one more <bos>'): [[BOS, *x] for x in contexts],
    ('chat template', 'the other form of prompts'): other_contexts,
  }
  ways = [(*x, dict(contexts=y)) for x, y in contexts_of.items() if y]
  for offset, name in (-1, 'previous'), (1, 'next'):
    change = f'states of {name} tokens'
    ways.append(('positions', change, dict(offset=offset)))
  config = model.module.config if isinstance(model, LanguageModel) else None
  window = getattr(config, 'sliding_window_size', None)
  for size in (window // 2, 2 * window) if window else ():
    changed = dataclasses.replace(config, sliding_window_size=size)
    module = dataclasses.replace(model.module, config=changed)
    wide = dataclasses.replace(model, module=module)
    ways.append(('sliding window', f'a window of {size}', dict(reader=wide)))
  return model, tree, ways


def _interval(gain, influences, comparisons, count):
  """Returns a gain and its interval, from what each of n answers adds."""
  error = np.linalg.norm(influences) * (count / (count - 1)) ** 0.5
  reach = error * stats.t.ppf(1 - _LEVEL / comparisons / 2, count - 1)
  return gain, gain - reach, gain + reach


def _clear_cause(results, rows) -> dict[str, str]:
  """Names the way with the largest gain over the first, if it is clear."""
  (*_, before), *_ = results
  minima = {'temperature': _TEMPERATURE_GAIN}

  def test(difference):
    gain = difference.mean()
    sums = np.bincount(rows, difference - gain)
    return _interval(gain, sums / len(rows), len(results), len(sums))

  ways = [(*test(x[-1] - before), *x) for x in results]
  ways = [x for x in ways if x[0] >= minima.get(x[3], _GAIN) and x[1] > 0]
  if not ways:
    return {}
  gain, low, high, cause, change, best = max(ways, key=lambda x: x[0])
  rivals = [x[-1] for x in ways if x[3] != cause]
  if not all(test(best - x)[1] > 0 for x in rivals):
    return {}
  return {
    cause: f'With {change} the drafter is accepted at {best.mean():.2f} per'
    f' token, not {before.mean():.2f} (gain {gain:.3f} [{low:.3f},'
    f' {high:.3f}], {rows[-1] + 1} answers): correct its {cause}.'
  }


def _change(before, rows, starts) -> dict[str, str]:
  """Names a position at which acceptance changes within answers."""
  index = np.arange(len(rows)) - np.searchsorted(rows, rows)
  at = starts[rows] + index

  def within(values):
    """Returns what answers and their n-th tokens do not share."""
    for groups in index, rows:
      means = np.bincount(groups, values) / np.bincount(groups)
      values = values - means[groups]
    return values

  rest, results = within(before), []
  positions = range(at.min() + _STRIDE, at.max(), _STRIDE)
  for position in positions:
    late = within((at >= position).astype(float))
    weights = np.bincount(rows, late**2)
    size = weights.sum()
    # As many answers of equal weight know as much.
    count = size**2 / max(1, weights @ weights)
    if count > 2:
      gain = late @ rest / size
      influences = np.bincount(rows, late * (rest - gain * late)) / size
      interval = _interval(gain, influences, len(positions), count)
      results.append((size * gain**2, position, interval))
  if not results:
    return {}
  _, position, (gain, low, high) = max(results)
  is_late = at >= position
  change = before[is_late].mean() - before[~is_late].mean()
  # A fault shows in the means too, whatever the answers have in common.
  if low * high <= 0 or min(abs(gain), change * np.sign(gain)) < _CHANGE:
    return {}
  return {
    'change at a position': f'The drafter is accepted at'
    f' {before[is_late].mean():.2f} from position {position} on, and at'
    f' {before[~is_late].mean():.2f} before it (change {gain:.3f} [{low:.3f},'
    f' {high:.3f}] beyond what answers share, {len(starts)} answers): check its'
    ' window, its positions and its cache.'
  }


def _loading(pairs, text, acceptance) -> dict[str, str]:
  """Names the first layer that differs, of two models of one shape."""
  configs = [x.module.config for x, _ in pairs if isinstance(x, LanguageModel)]
  # Layers of Gemma 3n pass on several states.
  configs = [x for x in configs if not hasattr(x, 'num_altup_inputs')]
  shapes = {(x.num_layers, x.embed_dim) for x in configs}
  if acceptance >= _EQUAL or not len(configs) > len(shapes) == 1:
    return {}
  ((depth, width),) = shapes
  tokens, layers = np.array([*text[0], *text[1]]), tuple(range(depth + 1))
  read = jax.jit(_hidden, static_argnums=(0, 3))
  states = [np.float32(read(x, y, tokens, layers)[0]) for x, y in pairs]
  states = [x.reshape(-1, depth + 1, width) for x in states]
  change = np.linalg.norm(states[1] - states[0], axis=(0, 2))
  far = change > _DIFFERENT * np.linalg.norm(states[0], axis=(0, 2))
  layer = f'layer {far.argmax()}' if far.any() else 'the last norm'
  return {
    'loading': "The drafter has the verifier's shape, but is accepted at"
    f' {acceptance:.2f} per token, and its hidden states differ after {layer}:'
    ' if they are one model, check how each is loaded.'
  }


def _kind(piece: str) -> str:
  """Returns the kind of a token."""
  text = piece.replace(SPACE, ' ')
  if len(text) > 1 and text[0] + text[-1] in ('<>', '[]'):
    return 'special tokens'
  if '\n' in text:
    return 'line ends'
  tests = dict(digits=str.isdigit, letters=str.isalpha, punctuation=str.strip)
  return next((k for k, f in tests.items() if any(map(f, text))), 'spaces')
