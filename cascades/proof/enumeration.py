"""What verification emits, by going through every block that it can make.

Written without the library's own verification, to be compared with it; the
equations are those of the modules of `verification`. A chance is an array [M],
one number for each method of a `Table`.

A block is written as its tokens: the drafts that stay, and the token after
them. One block may be found several times; its chances are to be added.
"""

import dataclasses
import functools
import itertools
import pkgutil
from collections.abc import Generator, Iterator, Mapping, Sequence

import numpy as np

from cascades import verification
from cascades.proof.table_models import TableModel
from cascades.proof.tabulated import Table

# The tokens of a block, and the chance [M] that it is emitted.
Block = tuple[tuple[int, ...], np.ndarray]
# Halvings of [1, m] in the search of k_seq's number.
_HALVINGS = 60


def declared_law(
  table: Table, model: TableModel, prompt: Sequence[int], length: int
) -> np.ndarray:
  """The declared law of the next `length` tokens: a product of laws.

    law(x_1 .. x_n) = prod_i law(x_i | prompt, x_1 .. x_{i-1})

  Args:
    table: What M methods say of every context.
    model: Tells the context of a sequence of tokens.
    prompt: Token ids before them.
    length: n.

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
  config: verification.VerificationConfig,
  model: TableModel,
  prompt: Sequence[int],
  length: int,
  gamma: int,
  drafts: int = 1,
  tree_size: int | None = None,
) -> np.ndarray:
  """What block after block emits, until there are `length` tokens.

  Args:
    table: What M methods say of every context.
    config: How blocks are verified.
    model: Tells the context of a sequence of tokens.
    prompt: Token ids before the first block.
    length: Tokens looked at; what a block has beyond them is summed over.
    gamma: Tokens of a draft.
    drafts: Drafts of a block.
    tree_size: Most drafted tokens that the verifier reads in a block; None for
      all.

  Returns:
    [M] + [V] * length, the probability of every continuation.
  """
  count, _, v = table.law.shape
  total = np.zeros([count] + [v] * length)
  # Chances of what was emitted so far, the shortest first.
  waiting = [{} for _ in range(length)]
  waiting[0][()] = np.ones(count)
  for prefixes in waiting:
    for done, chance in prefixes.items():
      for block, share in blocks(
        table,
        config,
        model,
        [*prompt, *done],
        gamma,
        drafts,
        tree_size,
      ):
        longer = (*done, *block)[:length]
        if len(longer) == length:
          total[(slice(None), *longer)] += chance * share
        else:
          of_length = waiting[len(longer)]
          of_length[longer] = of_length.get(longer, 0) + chance * share
  return total


def blocks(
  table: Table,
  config: verification.VerificationConfig,
  model: TableModel,
  prefix: Sequence[int],
  gamma: int,
  drafts: int = 1,
  tree_size: int | None = None,
) -> Iterator[Block]:
  """Every block that can follow, and its chance.

  Args:
    table: What M methods say of every context.
    config: How the block is verified.
    model: Tells the context of a sequence of tokens.
    prefix: Token ids before the block.
    gamma: Tokens of a draft.
    drafts: How many there are; one, unless the verification looks at several.
    tree_size: Most drafted tokens that the verifier reads; None for all.

  Yields:
    Tokens, and the chance [M] of having them so; the chances sum to 1.
  """
  bonus = table.law if config.bonus == 'target' else table.p[None]
  place = Place(table, bonus, model, tuple(prefix), gamma)
  if config.verification in verification.MULTI_DRAFT:
    yield from _by_tree(place, config.verification, drafts, tree_size)
  elif config.verification == 'token':
    yield from _by_token(place, (), place.certain)
  elif config.kind.blocks:
    yield from pkgutil.resolve_name(config.kind.blocks)(place, config.argument)
  elif config.verification == verification.SEQUENTIAL:
    yield from _by_rule(place)
  else:
    yield from _by_block(place)


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a block begins, and what is known of whatever follows.

  Attributes:
    table: What M methods say of every context.
    bonus: [M, contexts, V] or [1, contexts, V], what the token after a whole
      draft is drawn from.
    model: Tells the context of a sequence of tokens.
    prefix: Token ids before the block.
    gamma: Tokens of a draft.
  """

  table: Table
  bonus: np.ndarray
  model: TableModel
  prefix: tuple[int, ...]
  gamma: int

  @property
  def tokens(self) -> range:
    """Every token there is."""
    return range(self.table.q.shape[-1])

  @property
  def certain(self) -> np.ndarray:
    """The chance [M] of what is sure."""
    return np.ones(self.table.law.shape[0])

  def context(self, done: Sequence[int]) -> int:
    """The table's row after these tokens of the block."""
    return self.model.after([*self.prefix, *done])

  def drafts(self) -> Iterator[tuple[tuple[int, ...], float, list[int]]]:
    """Every draft, its chance, and the rows before its tokens and after it."""
    for draft in itertools.product(self.tokens, repeat=self.gamma):
      rows = [self.context(draft[:i]) for i in range(self.gamma + 1)]
      chance = np.prod(self.table.q[rows[:-1], draft])
      if chance:
        yield draft, chance, rows


def ended(
  done: tuple[int, ...], chance: np.ndarray, weights: np.ndarray
) -> Iterator[Block]:
  """Blocks whose last token is drawn now.

  Args:
    done: The drafts that stay.
    chance: [M], of coming so far.
    weights: [M, V] or [1, V], what the token after them is drawn from.
  """
  for y in range(weights.shape[-1]):
    yield (*done, y), chance * weights[:, y]


# --- One draft ---


def _by_token(
  place: Place, done: tuple[int, ...], chance: np.ndarray
) -> Iterator[Block]:
  """Blocks that go on from accepted drafts, each draft judged by itself.

  A draft is x, and stays, with q(x) a(x); with what is left of 1 a token of the
  residual ends the block.

  Args:
    place: Where the block begins.
    done: The drafts that stay so far.
    chance: [M], of coming so far.
  """
  table, c = place.table, place.context(done)
  if len(done) == place.gamma:
    yield from ended(done, chance, place.bonus[:, c])
    return
  kept = table.q[c] * table.acceptance[:, c]
  missed = (table.q[c] - kept).sum(-1)
  yield from ended(done, chance * missed, table.residual[:, c])
  for x in place.tokens:
    yield from _by_token(place, (*done, x), chance * kept[:, x])


def _by_rule(place: Place) -> Iterator[Block]:
  """The next token of a sequential cascade.

  A draft is x, and stays, with q(x) (1 - r(x)); where the rule r defers, the
  verifier writes the token.
  """
  table, c = place.table, place.context(())
  kept = table.q[c] * (1 - table.deferred[:, c])
  missed = (table.q[c] - kept).sum(-1, keepdims=True)
  yield from ended((), place.certain, kept + missed * table.p[c])


def _by_block(place: Place) -> Iterator[Block]:
  """Blocks of one draft that is judged as a whole.

  The longest part of it stays that may, x_1 .. x_n with the largest n whose own
  coin, of chance h_n, says so; h and what follows are those of `_stays`.
  """
  for draft, drawn, rows in place.drafts():
    stays, instead = _stays(place.table, draft, rows)
    chance = drawn * place.certain
    yield from ended(draft, chance * stays[-1], place.bonus[:, rows[-1]])
    chance = chance * (1 - stays[-1])
    for n in reversed(range(place.gamma)):
      stay = stays[n - 1] if n else 1.0
      mass = instead[n].sum(-1, keepdims=True)
      weights = instead[n] / np.where(mass > 0, mass, 1)
      yield from ended(draft[:n], chance * stay, weights)
      chance = chance * (1 - stay)


def _stays(
  table: Table, draft: Sequence[int], rows: Sequence[int]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """What block verification makes of one draft.

  With w_0 = 1, and pi_i and q_i the law and the drafter's row of draft x_i,

    w_i = min(1, w_{i-1} pi_i(x_i) / q_i(x_i))
    S_i = sum max(0, w_i pi_{i+1} - q_{i+1})
    h_i = S_i / (S_i + 1 - w_i) for i < gamma,   h_gamma = w_gamma.

  Args:
    table: What M methods say of every context.
    draft: [gamma] token ids x_1 .. x_gamma.
    rows: [gamma + 1], the context before each of them and after the last.

  Returns:
    h_1 .. h_gamma, [M] each: the chance that x_1 .. x_i stay where no more did;
    and, for i = 0 .. gamma, max(0, w_i pi_{i+1} - q_{i+1}), [M, V], what the
    token after them is then drawn from, not normalised.
  """
  weight = np.ones(table.law.shape[0])
  stays = []
  instead = [np.maximum(table.law[:, rows[0]] - table.q[rows[0]], 0)]
  for i, x in enumerate(draft):
    weight = weight * table.law[:, rows[i], x] / table.q[rows[i]][x]
    weight = np.minimum(weight, 1)
    after = weight[:, None] * table.law[:, rows[i + 1]] - table.q[rows[i + 1]]
    instead.append(np.maximum(after, 0))
    mass = instead[-1].sum(-1)
    ratio = mass / np.where(weight < 1, mass + (1 - weight), 1)
    ratio = np.where(weight < 1, ratio, 1)
    stays.append(weight if i == len(draft) - 1 else ratio)
  return stays, instead


# --- Several drafts ---


def _by_tree(
  place: Place, kind: str, drafts: int, tree_size: int | None
) -> Iterator[Block]:
  """Blocks of several drafts, all of them drawn independently.

  Args:
    place: Where the block begins.
    kind: One of `verification.MULTI_DRAFT`.
    drafts: How many there are.
    tree_size: Most drafted tokens that the verifier reads; None for all.
  """
  table, gamma = place.table, place.gamma
  every = list(place.drafts())
  # A prefix of one draft is one of another's: their rows are looked up once.
  rows = {
    draft[:i]: of_draft[i]
    for draft, _, of_draft in every
    for i in range(gamma + 1)
  }

  # Many trees ask the same.
  @functools.cache
  def step(c, candidates):
    return _STEPS[kind](table.law[:, c], table.q[c], candidates)

  def down(done, active, chance, levels):
    """Blocks that go on from `done`, where the active drafts agree with it."""
    c = rows[done]
    if len(done) == levels:
      yield from ended(done, chance, place.bonus[:, c])
      return
    accepted, instead = step(c, tuple(draft[len(done)] for draft in active))
    yield from ended(done, chance, instead)
    for x, share in accepted.items():
      agree = [draft for draft in active if draft[len(done)] == x]
      yield from down((*done, x), agree, chance * share, levels)

  for drawn in itertools.product(every, repeat=drafts):
    paths, chances, _ = zip(*drawn, strict=True)
    chance = np.prod(chances) * place.certain
    levels = _levels(paths, tree_size or gamma * drafts)
    if kind == 'traversal':
      cut = [draft[:levels] for draft in paths]
      tree = _Leaves(place, rows, cut, set())
      yield from tree.through((), place.certain, chance)
      continue
    yield from down((), paths, chance, levels)


@dataclasses.dataclass(frozen=True)
class _Leaves:
  """A tree of drafts that is gone through from its leaves.

  Attributes:
    place: Where the block begins.
    rows: The table's row after each prefix of a draft.
    paths: The drafts, as far as they are read.
    tried: Pairs of a draft and the place of its token, which were tried.
  """

  place: Place
  rows: Mapping[tuple[int, ...], int]
  paths: Sequence[tuple[int, ...]]
  tried: set[tuple[int, int]]

  def through(
    self, done: tuple[int, ...], budget: np.ndarray, chance: np.ndarray
  ) -> Generator[Block, None, np.ndarray]:
    """Blocks through a node; gives the chance [M] that there is none.

    Args:
      done: The node's tokens.
      budget: [M], the chance of going through it, once it is come to.
      chance: [M], of coming to it.
    """
    table, c, at = self.place.table, self.rows[done], len(done)
    q, target, weights = table.q[c], table.law[:, c], self.place.bonus[:, c]
    for j, path in enumerate(self.paths):
      if path[:at] != done or len(path) == at or (j, at) in self.tried:
        continue
      self.tried.add((j, at))
      of_x = np.minimum(1, budget * target[:, path[at]] / q[path[at]])
      chance = yield from self.through(path[: at + 1], of_x, chance)
      left = np.maximum(budget[:, None] * target - q, 0)
      mass, missing = left.sum(-1), 1 - budget
      budget = mass / np.where(mass > 0, mass + missing, 1)
      target = weights = normalize(left, target)
    if not done:
      budget = self.place.certain
    yield from ended(done, chance * budget, weights)
    return chance * (1 - budget)


def _levels(paths: Sequence[tuple[int, ...]], size: int) -> int:
  """Levels of a tree of drafts that the verifier reads.

  A level is read if it fits even where no two drafts agree in it.

  Args:
    paths: The drafts, [drafts][gamma] token ids.
    size: Most drafted tokens that it reads.
  """
  gamma, nodes = len(paths[0]), 0
  for level in range(gamma):
    if nodes + len(paths) > size:
      return level
    nodes += len({draft[: level + 1] for draft in paths})
  return gamma


# What one step down a tree says: the chance [M] that each candidate is
# accepted, and that each token is emitted instead, [M, V].
_Step = tuple[dict[int, np.ndarray], np.ndarray]


def _match(law: np.ndarray, q: np.ndarray, candidates: Sequence[int]) -> _Step:
  """A token of the law; it is accepted if it is a candidate.

  Args:
    law: [M, V], pi.
    q: [V], which has no part in it.
    candidates: Next tokens of the drafts, [m].
  """
  del q
  accepted = {x: law[:, x] for x in candidates}
  others = [y not in accepted for y in range(law.shape[1])]
  return accepted, law * others


def _multi_round(
  law: np.ndarray, q: np.ndarray, candidates: Sequence[int]
) -> _Step:
  """One candidate after the other, from rho = pi on.

    accept x with min(1, rho(x) / q(x)), else rho <- norm(max(0, rho - q))

  Args:
    law: [M, V], pi.
    q: [V], what the candidates were drawn from.
    candidates: Next tokens of the drafts, [m].
  """
  accepted = {x: np.zeros(len(law)) for x in candidates}
  alive, rho = np.ones(len(law)), law
  for x in candidates:
    yes = np.minimum(1, rho[:, x] / q[x])
    accepted[x] = accepted[x] + alive * yes
    alive = alive * (1 - yes)
    rho = normalize(np.maximum(rho - q, 0), rho)
  return accepted, alive[:, None] * rho


def _k_seq(law: np.ndarray, q: np.ndarray, candidates: Sequence[int]) -> _Step:
  """Every candidate against the law divided by one number c.

    accept x with min(1, pi(x) / (c q(x)))
    else draw from norm(pi - min(q, pi / c) a / b)

  with b and a of `_divisor`.

  Args:
    law: [M, V], pi.
    q: [V], what the candidates were drawn from.
    candidates: Next tokens of the drafts, [m].
  """
  accepted = {x: np.zeros(len(law)) for x in candidates}
  alive = np.ones(len(law))
  c, b, a = _divisor(law, q, len(candidates))
  for x in candidates:
    yes = np.minimum(1, law[:, x] / c / q[x])
    accepted[x] = accepted[x] + alive * yes
    alive = alive * (1 - yes)
  share = np.minimum(q, law / c[:, None])
  left = np.maximum(law - share * (a / np.where(b > 0, b, 1))[:, None], 0)
  return accepted, alive[:, None] * normalize(left, law)


def _divisor(
  law: np.ndarray, q: np.ndarray, m: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The least c in [1, m] with c b >= a, found by halving.

    b = sum min(q, pi / c),   a = 1 - (1 - b)^m

  Args:
    law: [M, V], pi.
    q: [V], what the candidates were drawn from.
    m: How many candidates there are.

  Returns:
    c; b, the chance that one candidate is accepted; a, that any is; [M] each.
  """

  def accepts(c):
    b = np.minimum(q, law / c[:, None]).sum(-1)
    return b, 1 - (1 - b) ** m

  low, high = np.ones(len(law)), np.full(len(law), float(m))
  for _ in range(_HALVINGS):
    middle = (low + high) / 2
    b, a = accepts(middle)
    enough = middle * b >= a
    low, high = np.where(enough, low, middle), np.where(enough, middle, high)
  return high, *accepts(high)


def normalize(weights: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
  """Returns weights / sum(weights), [M, V], or `otherwise` without mass."""
  mass = weights.sum(-1, keepdims=True)
  return np.where(mass > 0, weights / np.where(mass > 0, mass, 1), otherwise)


_STEPS = {'match': _match, 'multi_round': _multi_round, 'k_seq': _k_seq}
