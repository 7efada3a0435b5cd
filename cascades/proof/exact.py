"""Small models whose laws are known exactly, for tests and audits.

`TableModel` looks up its logits by a hash of every token it can see in its
cache. A cache that is one token behind, a slot that was not rolled back or a
position that is off by one changes the hash, so it changes the law.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from cascades import decoding, methods, verification
from cascades.methods import processing


@dataclasses.dataclass(frozen=True)
class TableModel:
  """A language model that is a table; same interface as `LanguageModel`.

  Its parameters are the table, [contexts, V]: logits per hashed context.

  Attributes:
    vocab_size: V.
    contexts: Number of hash values; 1 makes a context-free model.
  """

  vocab_size: int
  contexts: int = 7

  def init_params(self, key: jax.Array, scale: float = 2.0):
    """A random table."""
    shape = (self.contexts, self.vocab_size)
    return scale * jax.random.normal(key, shape)

  def init_cache(self, params, cache_length: int):
    del params
    slots = jnp.zeros((cache_length,), jnp.int32)
    zero = jnp.zeros((), jnp.int32)
    return {'tokens': slots, 'positions': slots, 'end_index': zero}

  def cache_length(self, cache) -> int:
    return cache['tokens'].shape[-1]

  def context(self, tokens, positions):
    """The hash of a sequence of visible tokens."""
    return ((tokens + 1) * (1 + 3 * positions)).sum(-1) % self.contexts

  def __call__(self, params, tokens, positions, mask, cache=None):
    if cache is None:
      cache = self.init_cache(params, tokens.shape[0])

    def write(old, new):
      return jax.lax.dynamic_update_slice(old, new, (cache['end_index'],))

    held = write(cache['tokens'], tokens)
    at = write(cache['positions'], positions.astype(jnp.int32))
    seen = (held + 1) * (1 + 3 * at)
    context = jnp.where(mask, seen[None], 0).sum(-1) % self.contexts
    end_index = cache['end_index'] + tokens.shape[0]
    return params[context], {
      'tokens': held,
      'positions': at,
      'end_index': end_index,
    }

  def with_hidden(self, params, tokens, positions, mask, cache):
    """Its hidden states are its logits."""
    logits, cache = self(params, tokens, positions, mask, cache)
    return logits, logits, cache

  def hidden_size(self, params) -> int:
    del params
    return self.vocab_size

  def dtype(self, params):
    return params.dtype

  def embed(self, params, token):
    del params
    return jax.nn.one_hot(token, self.vocab_size)

  def decode(self, params, hidden):
    del params
    return hidden

  def move(self, cache, at, slots):
    return cache | {
      name: jax.lax.dynamic_update_slice(x, x[slots], (at,))
      for name, x in cache.items()
      if x.ndim
    }

  def rewind(self, cache, length):
    length = jnp.asarray(length, jnp.int32)
    return cache | {'end_index': jnp.broadcast_to(length, ())}

  def resize(self, params, cache, cache_length):
    del params
    more = cache_length - self.cache_length(cache)
    return cache | {
      name: jnp.pad(cache[name], (0, more)) for name in ('tokens', 'positions')
    }

  def logits(self, params, tokens) -> jax.Array:
    """The logits after a whole sequence, without a cache; [V]."""
    tokens = jnp.asarray(tokens)
    return params[self.context(tokens, jnp.arange(len(tokens)))]


KINDS = ('random', 'equal', 'disjoint', 'one_hot', 'near_equal')


def rows(
  kind: str, count: int = 64, size: int = 9, seed: int = 0
) -> methods.Distributions:
  """Distributions to try a method on, float64, numpy.

  Args:
    kind: 'random'; or p and q 'equal', 'disjoint', both 'one_hot', or
      'near_equal', which float32 can hardly tell apart.
    count: How many.
    size: V.
    seed: Of the rows.

  Returns:
    Each field [count, size]; the gates are independent of p and q.
  """
  rng = np.random.default_rng(seed)
  q = rng.dirichlet(np.full(size, 0.5), count)
  p = rng.dirichlet(np.full(size, 0.5), count)
  if kind == 'equal':
    p = q
  elif kind == 'disjoint':
    q[:, ::2], p[:, 1::2] = 0, 0
    q, p = q / q.sum(1, keepdims=True), p / p.sum(1, keepdims=True)
  elif kind == 'one_hot':
    q = np.eye(size)[rng.integers(size, size=count)]
    p = np.eye(size)[rng.integers(size, size=count)]
  elif kind == 'near_equal':
    p = q * (1 + 1e-7 * rng.standard_normal(q.shape))
    p = p / p.sum(1, keepdims=True)
  gates = rng.dirichlet(np.ones(size), (2, count))
  return methods.Distributions(q, p, *gates)


@dataclasses.dataclass(frozen=True)
class Table:
  """What methods say of every context, numpy; M methods at a time.

  Attributes:
    q: [contexts, V], likewise p.
    p: The verifier.
    acceptance: [M, contexts, V], likewise the rest.
    residual: What a rejected draft is replaced from.
    law: The declared law.
    deferred: Where the rule defers; 0 where there is none.
  """

  q: np.ndarray
  p: np.ndarray
  acceptance: np.ndarray
  residual: np.ndarray
  law: np.ndarray
  deferred: np.ndarray

  @classmethod
  def of(
    cls,
    pairs: Sequence[tuple[methods.Method, float]],
    d: methods.Distributions,
  ) -> 'Table':
    """Tabulates methods at a lenience each, for d [contexts, V]."""

    d = jax.tree.map(jnp.asarray, d)
    columns = [
      np.asarray(_tabulate(d, jnp.asarray(lenience, d.q.dtype), method=method))
      for method, lenience in pairs
    ]
    columns = np.stack(columns, axis=1).astype(np.float64)
    return cls(np.asarray(d.q), np.asarray(d.p), *columns)


@functools.partial(jax.jit, static_argnames='method')
def _tabulate(d, lenience, *, method):
  """Acceptance, residual, law and deferrals, [4, contexts, V]."""
  rule = method.rule or (lambda d, lenience: jnp.zeros(()))

  def one(row):
    said = (
      method.acceptance(row, lenience),
      method.residual(row, lenience),
      method.law(row, lenience),
      jnp.broadcast_to(rule(row, lenience), row.q.shape),
    )
    return jnp.stack([x.astype(row.q.dtype) for x in said])

  return jax.vmap(one, out_axes=1)(d)


def table_distributions(
  verifier_table,
  drafter_table,
  how: processing.Processing,
  gate: str = 'raw',
  of_verifier: processing.Processing | None = None,
) -> methods.Distributions:
  """What the loop sees in each context of two `TableModel`s."""
  probs = jax.vmap(processing.probabilities, (0, None))
  q, p = probs(drafter_table, how), probs(verifier_table, of_verifier or how)
  if gate == 'processed':
    return methods.Distributions(q, p, q, p)
  return methods.Distributions(
    q,
    p,
    processing.gate_probabilities(drafter_table),
    processing.gate_probabilities(verifier_table),
  )


def looked_up(
  tables: Sequence[Table],
  seen: Sequence[methods.Distributions],
  with_rules: bool = False,
) -> methods.Method:
  """A method whose lenience i is the i-th method at its own lenience.

  What it says is what those methods said of the distributions that the loop
  will see: it finds the row that it is shown, and looks up acceptance,
  residual, law and rule. So one small program verifies them all, in one batch,
  whatever they are; that each of them says what is right is shown without the
  loop, on the same distributions.

  Args:
    tables: What the methods say of all that the loop may show it.
    seen: Of each table, what that is; each field [contexts, V].
    with_rules: Whether it has their deferral rules; all must have one.

  Raises:
    ValueError: Two rows are so near that the lookup may take one for the other,
      though the methods do not say the same of both.
  """
  d = jax.tree.map(lambda *x: np.concatenate(x), *seen)
  names = 'acceptance', 'residual', 'law', 'deferred'
  said = {
    n: np.concatenate([getattr(t, n) for t in tables], 1).astype(np.float32)
    for n in names
  }
  # A row is found by a number that is made of it.
  rng = np.random.default_rng(0)
  weights = methods.Distributions(*rng.uniform(-1, 1, (4, d.q.shape[-1])))

  def number(d):
    terms = jax.tree.map(
      lambda x, w: (x * w.astype(np.float32)).sum(-1), d, weights
    )
    return sum(terms)

  numbers = np.asarray(number(d))
  order = np.argsort(numbers)
  for i, j in itertools.pairwise(order):
    if numbers[j] - numbers[i] < 1e-4 and any(
      np.abs(x[:, i] - x[:, j]).max() > 1e-4 for x in said.values()
    ):
      raise ValueError(f'looked_up: rows {i} and {j} cannot be told apart.')

  def pick(name):
    values = said[name]
    return lambda d, i: jnp.asarray(values)[
      i.astype(jnp.int32), jnp.argmin(jnp.abs(numbers - number(d)))
    ]

  return methods.Method(
    name='looked_up',
    equation='by lenience',
    reference='tests',
    strict=None,
    drafter_only=None,
    # Whether they are to be verified so is for who asks to see.
    single_target=True,
    rule=pick('deferred') if with_rules else None,
    **{name: pick(name) for name in names[:3]},
  )


def one_of(
  pairs: Sequence[tuple[methods.Method, float]], with_rules: bool = False
) -> methods.Method:
  """A method whose lenience i is the i-th method at its own lenience.

  So that one compiled loop serves them all, in one batch.

  Args:
    pairs: Methods, each at a lenience.
    with_rules: Whether it has their deferral rules, 0 where there is none.
  """
  # A method is there once, at however many leniences.
  every = list(dict.fromkeys(method.name for method, _ in pairs))
  which = np.array([every.index(method.name) for method, _ in pairs])
  leniences = np.array([lenience for _, lenience in pairs])

  def pick(field):
    def branch(method):
      said = getattr(method, field) or (lambda d, lenience: jnp.zeros(()))

      def run(d, lenience):
        return jnp.broadcast_to(said(d, lenience), d.q.shape).astype(d.q.dtype)

      return run

    own = {method.name: branch(method) for method, _ in pairs}

    def run(d, i):
      i = i.astype(jnp.int32)
      lenience = jnp.asarray(leniences, d.q.dtype)[i]
      return jax.lax.switch(
        jnp.asarray(which)[i], [own[name] for name in every], d, lenience
      )

    return run

  return methods.Method(
    name='one_of',
    equation='by lenience',
    reference='tests',
    strict=None,
    drafter_only=None,
    single_target=all(m.single_target for m, _ in pairs),
    rule=pick('rule') if with_rules else None,
    **{name: pick(name) for name in ('acceptance', 'residual', 'law')},
  )


def declared_law(
  table: Table, model: TableModel, prompt: Sequence[int], length: int
) -> np.ndarray:
  """The declared law of the next `length` tokens: a product of laws.

  Returns:
    [M] + [V] * length, the probability of every continuation.
  """
  count, _, v = table.law.shape
  total = np.ones((count,))
  for i in range(length):
    prefixes = list(itertools.product(range(v), repeat=i))
    tokens = np.array([[*prompt, *prefix] for prefix in prefixes])
    context = model.context(tokens, np.arange(tokens.shape[1]))
    laws = table.law[:, context].reshape([count] + [v] * (i + 1))
    total = total[..., None] * laws
  return total


def emitted_law(
  table: Table,
  scheme: verification.Scheme,
  model: TableModel,
  prompt: Sequence[int],
  length: int,
  gamma: int,
  drafts: int = 1,
  tree_size: int | None = None,
) -> np.ndarray:
  """What verification emits, by going through every block it can make.

  Written without the library's own verification, to be compared with it.

  Returns:
    As `declared_law`, for the next `length` tokens.
  """
  count, _, v = table.law.shape
  total = np.zeros([count] + [v] * length)
  # Chances of what was emitted so far, the shortest first.
  waiting = [{} for _ in range(length)]
  waiting[0][()] = np.ones(count)
  for prefixes in waiting:
    for done, chance in prefixes.items():
      for block, share in blocks(
        table, scheme, model, [*prompt, *done], gamma, drafts, tree_size
      ):
        longer = (*done, *block)[:length]
        if len(longer) == length:
          total[(slice(None), *longer)] += chance * share
        else:
          of_length = waiting[len(longer)]
          of_length[longer] = of_length.get(longer, 0) + chance * share
  return total


class Asked(NamedTuple):
  """What is decoded.

  Attributes:
    prompts: Token ids.
    keys: One per prompt; its leniences share it.
    leniences: Points of a curve; an array has one for each prompt instead.
    new: Most new tokens.
  """

  prompts: Sequence[Sequence[int]]
  keys: jax.Array
  leniences: Sequence[float] | np.ndarray
  new: int


def decode_curve(
  decoder: decoding.Decoder,
  params: Sequence[PyTree],
  asked: Asked,
  how: processing.Processing,
  *,
  stops: Sequence[int] = (-1,),
  room: int | None = None,
  return_logits: bool = False,
) -> decoding.Row:
  """Every prompt at every lenience through the compiled loop, at once.

  Args:
    decoder: Both models, and how their blocks are verified.
    params: The verifier's and the drafter's.
    asked: Prompts and leniences.
    how: From logits to probabilities.
    stops: Ids that end a row.
    room: For how many new tokens there is room, at least `asked.new`, which
      is that if None; runs that differ in it alone are then one program.
    return_logits: Whether the rows hold the verifier's logits.

  Returns:
    Final rows, numpy, [prompts, leniences, ...], or [prompts, ...] of an
    array of leniences; without caches and keys.
  """
  prompts, keys, leniences, new = asked
  lengths = np.array([len(prompt) for prompt in prompts], np.int32)
  # Multiples of 8, so that prompts of many lengths compile once.
  padded = np.zeros((len(prompts), -(-lengths.max() // 8) * 8), np.int32)
  for row, prompt in zip(padded, prompts, strict=True):
    row[: len(prompt)] = prompt
  paired = isinstance(leniences, np.ndarray)
  shape = (len(prompts),) if paired else (len(prompts), len(leniences))
  params = decoding.Params(*params)
  room = new if room is None else room
  rows = decoding.prefill(
    params,
    padded,
    lengths,
    keys,
    lengths + new,
    cache_length=padded.shape[1] + room + decoder.slack,
    logits_length=room + decoder.gamma + 1 if return_logits else 0,
    models=decoder.models,
  )
  leniences = np.asarray(leniences, np.float32)
  if not paired:
    rows = decoding.take(rows, np.repeat(np.arange(shape[0]), shape[1]))
    leniences = np.tile(leniences, shape[0])
  rows = rows.replace(lenience=leniences)
  rows, _ = decoding.decode(
    rows, params, how, np.asarray(stops, np.int32), decoder=decoder
  )
  rows = rows.replace(
    verifier_cache=None, drafter_state=None, hidden=None, key=None
  )
  rows = jax.tree.map(lambda x: x.reshape(shape + x.shape[1:]), rows)
  return jax.device_get(rows)


def z_scores(tokens: np.ndarray, law: np.ndarray) -> np.ndarray:
  """How far the counts of outcomes are from a law, in standard deviations.

  Outcomes so rare that no normal holds (fewer than 10 expected) are taken
  together; one that cannot be is infinitely far off.

  Args:
    tokens: [N, n], N independent outcomes of n tokens each.
    law: [V] * n.
  """
  n = len(tokens)
  counts = np.zeros(law.shape)
  np.add.at(counts, tuple(tokens.T), 1)
  if counts[law == 0].any():
    return np.array([np.inf])
  law = law / law.sum()
  counts, law = counts.ravel(), law.ravel()
  rare = n * law < 10
  counts = np.append(counts[~rare], counts[rare].sum())
  law = np.append(law[~rare], law[rare].sum())
  sd = np.sqrt(n * law * (1 - law))
  return (counts - n * law) / np.maximum(sd, 1e-3)


def _candidates(
  kind: str, law: np.ndarray, q: np.ndarray, tokens: Sequence[int]
) -> tuple[dict[int, np.ndarray], np.ndarray]:
  """One step of a verification of several drafts, from one prefix.

  Args:
    kind: Of `verification.SEVERAL`.
    law: [M, V].
    q: [V], what the candidates were drawn from.
    tokens: The candidates.

  Returns:
    The chance [M] that each token is accepted, and that each is emitted
    instead, [M, V].
  """
  accepted = {x: np.zeros(len(law)) for x in tokens}
  alive = np.ones(len(law))
  if kind == 'match':
    accepted = {x: law[:, x] for x in tokens}
    others = [y not in accepted for y in range(law.shape[1])]
    return accepted, law * others
  if kind == 'multi_round':
    rho = law
    for x in tokens:
      yes = np.minimum(1, rho[:, x] / q[x])
      accepted[x] = accepted[x] + alive * yes
      alive = alive * (1 - yes)
      left = np.maximum(rho - q, 0)
      mass = left.sum(-1, keepdims=True)
      rho = np.where(mass > 0, left / np.where(mass > 0, mass, 1), rho)
    return accepted, alive[:, None] * rho
  m = len(tokens)

  def accepts(c):
    b = np.minimum(q, law / c[:, None]).sum(-1)
    return b, 1 - (1 - b) ** m

  low, high = np.ones(len(law)), np.full(len(law), float(m))
  for _ in range(60):
    middle = (low + high) / 2
    b, a = accepts(middle)
    enough = middle * b >= a
    low, high = np.where(enough, low, middle), np.where(enough, middle, high)
  b, a = accepts(high)
  for x in tokens:
    yes = np.minimum(1, law[:, x] / high / q[x])
    accepted[x] = accepted[x] + alive * yes
    alive = alive * (1 - yes)
  share = np.minimum(q, law / high[:, None])
  left = np.maximum(law - share * (a / np.where(b > 0, b, 1))[:, None], 0)
  mass = left.sum(-1, keepdims=True)
  left = np.where(mass > 0, left / np.where(mass > 0, mass, 1), law)
  return accepted, alive[:, None] * left


def blocks(
  table: Table,
  scheme: verification.Scheme,
  model,
  prefix,
  gamma: int,
  drafts: int = 1,
  tree_size: int | None = None,
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
  """Every block that can follow, and its probability [M]."""
  v = table.q.shape[-1]

  def context(done):
    tokens = np.array([*prefix, *done])
    return int(model.context(tokens, np.arange(len(tokens))))

  def then(done, chance, weights):
    """The last token of a block, drawn from weights [M, V]."""
    for y in range(v):
      yield (*done, y), chance * weights[:, y]

  bonus = table.law if scheme.bonus == 'target' else table.p[None]

  def by_token(done, chance):
    c = context(done)
    if len(done) == gamma:
      yield from then(done, chance, bonus[:, c])
      return
    kept = table.q[c] * table.acceptance[:, c]
    missed = (table.q[c] - kept).sum(-1)
    yield from then(done, chance * missed, table.residual[:, c])
    for x in range(v):
      yield from by_token((*done, x), chance * kept[:, x])

  def sequential(done, chance):
    c = context(done)
    kept = table.q[c] * (1 - table.deferred[:, c])
    missed = (table.q[c] - kept).sum(-1)
    yield from then(done, chance * missed, table.p[c][None])
    if len(done) == gamma:
      yield from then(done, chance, kept)
      return
    for x in range(v):
      yield from sequential((*done, x), chance * kept[:, x])

  def by_block():
    for draft in itertools.product(range(v), repeat=gamma):
      rows = [context(draft[:i]) for i in range(gamma + 1)]
      drawn = np.prod(
        [table.q[c][x] for c, x in zip(rows, draft, strict=False)]
      )
      if not drawn:
        continue
      weight = np.ones(table.law.shape[0])
      stays, instead = (
        [],
        [np.maximum(table.law[:, rows[0]] - table.q[rows[0]], 0)],
      )
      for i, x in enumerate(draft):
        weight = weight * table.law[:, rows[i], x] / table.q[rows[i]][x]
        weight = np.minimum(weight, 1)
        after = (
          weight[:, None] * table.law[:, rows[i + 1]] - table.q[rows[i + 1]]
        )
        instead.append(np.maximum(after, 0))
        mass = instead[-1].sum(-1)
        ratio = mass / np.where(weight < 1, mass + (1 - weight), 1)
        ratio = np.where(weight < 1, ratio, 1)
        stays.append(weight if i == gamma - 1 else ratio)
      beyond = np.full_like(weight, drawn)
      yield from then(draft, beyond * stays[-1], bonus[:, rows[-1]])
      beyond = beyond * (1 - stays[-1])
      for n in range(gamma - 1, -1, -1):
        stay = stays[n - 1] if n else 1.0
        mass = instead[n].sum(-1, keepdims=True)
        weights = instead[n] / np.where(mass > 0, mass, 1)
        yield from then(draft[:n], beyond * stay, weights)
        beyond = beyond * (1 - stay)

  def of_several():
    every = list(itertools.product(range(v), repeat=gamma))
    # A prefix of one draft is one of another's: their rows are looked up once.
    rows = {
      done: context(done)
      for i in range(gamma + 1)
      for done in itertools.product(range(v), repeat=i)
    }
    drawn = {
      draft: np.prod([table.q[rows[draft[:i]]][x] for i, x in enumerate(draft)])
      for draft in every
    }

    def depth(paths):
      """Levels of the tree that the verifier reads."""
      size = tree_size or gamma * drafts
      nodes = 0
      for level in range(gamma):
        if nodes + drafts > size:
          return level
        nodes += len({draft[: level + 1] for draft in paths})
      return gamma

    # Many trees ask the same.
    @functools.cache
    def candidates(c, tokens):
      return _candidates(
        scheme.verification, table.law[:, c], table.q[c], tokens
      )

    def down(done, active, chance, levels):
      c = rows[done]
      if len(done) == levels:
        yield from then(done, chance, bonus[:, c])
        return
      accepted, instead = candidates(
        c, tuple(draft[len(done)] for draft in active)
      )
      yield from then(done, chance, instead)
      for x, share in accepted.items():
        agree = [draft for draft in active if draft[len(done)] == x]
        yield from down((*done, x), agree, chance * share, levels)

    for paths in itertools.product(every, repeat=drafts):
      chance = np.prod([drawn[draft] for draft in paths])
      if chance:
        every_row = np.full(table.law.shape[0], chance)
        yield from down((), paths, every_row, depth(paths))

  if scheme.verification in verification.SEVERAL:
    yield from of_several()
  elif scheme.verification == 'token':
    yield from by_token((), np.ones(table.law.shape[0]))
  elif scheme.verification == 'sequential':
    yield from sequential((), np.ones(table.law.shape[0]))
  else:
    yield from by_block()
