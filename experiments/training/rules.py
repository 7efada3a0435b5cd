"""Training a deferral rule, to the objective of Lemma 4.

At a token y of a text that is right, which stands for one drawn from the true
distribution, the drafter loses 1 - q(y) and the verifier 1 - p(y). A rule that
defers with r loses (1 - r) (1 - q(y)) + r (1 - p(y)), and pays r TV(p, q) in
rejections (Lemma 3), so that at lenience lam it is to make

  mean of (1 - r) (1 - q(y)) + r (1 - p(y) + lam TV(p, q))             (J)

small (Lemma 4 of Narasimhan et al. 2025, arXiv 2405.19261). Nobody has texts of
the true distribution; here they are those of a sweep of the pair, on training
examples, each weighing as it was scored, and each example as much as another.
Both models read them once. Then the head of `contrib.learned` is fitted, from
OPT's weights on: r is a sigmoid, and J its mean over some leniences.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from ml_collections import ConfigDict
from scipy import optimize, special

from cascades import atomic, methods
from cascades.contrib import learned
from cascades.drafters import pairing
from cascades.sampler import sampler, scoring
from experiments import records
from experiments.records import stats

# What a rule is compared with, at leniences of which the best is taken.
COMPARED = {
  'chow': tuple(np.linspace(0, 1, 11).tolist()),
  'diff': tuple(np.linspace(-0.5, 0.5, 11).tolist()),
  'opt': tuple(np.linspace(-0.2, 1, 13).tolist()),
  'token_v2': (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
  'token_v3': (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999),
}
# Fields of a sweep that say how rows come about, with their usual values: they
# have to be the same of all workdirs.
_ALIKE = {
  'verifier': None,
  'drafter': None,
  'temperature': 1.0,
  'gate': 'raw',
  'dtype': None,
  'chat': False,
}


class Text(NamedTuple):
  """What a sweep wrote.

  Attributes:
    example: Of which task, and its id.
    prompt: Text that it answers.
    tokens: Ids of the answer.
    weight: How much it stands for what is right, of 1 for all of an example's.
  """

  example: tuple[str, str]
  prompt: str
  tokens: tuple[int, ...]
  weight: float


@dataclasses.dataclass(frozen=True)
class Places:
  """All tokens of some texts, and what is said of them.

  Attributes:
    features: In the order of `learned.FEATURES`, [N, F].
    q: How likely the token is to the drafter, as it samples, [N].
    p: The same of the verifier.
    price: TV(p, q) of what is sampled from, [N].
    laws: How likely it is in the law of each of `COMPARED`, by name, [N, K].
    rejected: How likely a draft there is to be rejected, by name, [N, K].
    weight: How much each token counts, [N]; they sum to 1.
    example: Number of its example, [N].
    held: Whether that is held out, [N].
  """

  features: Float[np.ndarray, 'N F']
  q: Float[np.ndarray, 'N']
  p: Float[np.ndarray, 'N']
  price: Float[np.ndarray, 'N']
  laws: Mapping[str, Float[np.ndarray, 'N K']]
  rejected: Mapping[str, Float[np.ndarray, 'N K']]
  weight: Float[np.ndarray, 'N']
  example: Int[np.ndarray, 'N']
  held: Bool[np.ndarray, 'N']

  def only(self, which: Bool[np.ndarray, 'N']) -> 'Places':
    """Some of the tokens, whose weights sum to 1 again."""

    def of(value):
      if isinstance(value, Mapping):
        return {name: x[which] for name, x in value.items()}
      return value[which]

    fields = (field.name for field in dataclasses.fields(self))
    some = {name: of(getattr(self, name)) for name in fields}
    return Places(**some | {'weight': some['weight'] / some['weight'].sum()})


def settings(workdirs: Sequence[str]) -> dict[str, Any]:
  """How sweeps were decoded that a rule is to learn from.

  Returns:
    The fields of `_ALIKE`.

  Raises:
    ValueError: There is none, one is of test examples, or they differ.
  """
  found: dict[str, Any] = {}
  for workdir in workdirs:
    path = pathlib.Path(workdir) / 'config.json'
    try:
      config = json.loads(path.read_text(encoding='utf-8'))
      said = {name: config.get(name, _ALIKE[name]) for name in _ALIKE}
    except (OSError, ValueError, AttributeError):
      raise ValueError(
        f'workdirs: {path} is not there, or no config; name finished sweeps,'
        ' with commas between them.'
      ) from None
    if config.get('split', 'test') == 'test':
      raise ValueError(
        f'workdirs: {workdir} is of test examples, which no rule may learn'
        ' from; decode training examples, with --config.split=train.'
      )
    for name, value in said.items():
      if found.setdefault(name, value) != value:
        raise ValueError(
          f'workdirs: {workdir} has the {name} {value!r}, and those before it'
          f' {found[name]!r}; name sweeps that agree in it.'
        )
  return found


def gather(config: ConfigDict, workdirs: Sequence[str]) -> list[Text]:
  """The texts of some sweeps that are worth something.

  A text that several points wrote is one, and weighs as often.

  Args:
    config: Says which score weighs them, and how many there may be.
    workdirs: Theirs.

  Raises:
    ValueError: There are no records, a score is unknown, or none is above 0.
  """
  worth: dict[tuple, float] = {}
  prompts: dict[tuple[str, str], str] = {}
  for workdir in workdirs:
    asked = records.read_examples(workdir)
    for point, lines in records.read_points(workdir).items():
      traces = records.read_traces(workdir, point)
      for record, trace in zip(lines, traces, strict=True):
        score = _worth(record, config.score)
        if not score > 0 or not trace.tokens:
          continue
        example = record.task, record.id
        prompts[example] = asked[record.task][record.id].prompt
        key = example, tuple(trace.tokens)
        worth[key] = worth.get(key, 0.0) + score**config.sharpness
  if not worth:
    raise ValueError(
      f'workdirs: no answer in {", ".join(workdirs)} is right; a rule learns'
      ' from those that are.'
    )
  # Whichever come first by a hash.
  kept = sorted(worth, key=lambda key: records.digest([*key[0], *key[1]]))
  kept = kept[: config.texts]
  totals: dict[tuple[str, str], float] = {}
  for key in kept:
    totals[key[0]] = totals.get(key[0], 0.0) + worth[key]
  return [
    Text(key[0], prompts[key[0]], key[1], worth[key] / totals[key[0]])
    for key in kept
  ]


def _worth(record: records.Record, score: str) -> float:
  """How right an answer is, at least 0; nan of what failed."""
  if record.failure is not None:
    return math.nan
  if score and score not in record.scores:
    raise ValueError(
      f'score: {record.task} has no score {score!r}; there are'
      f' {", ".join(record.scores)}.'
    )
  return record.scores[score] if score else record.quality


def said_of(method, d, lenience, token):
  """For `scoring.each`: what (J) is made of, at one place."""
  del method, lenience
  laws, rejected = [], []
  for name, leniences in COMPARED.items():
    other = methods.METHODS[name]
    at = jnp.asarray(leniences, d.q.dtype)
    laws.append(jax.vmap(other.law, (None, 0))(d, at)[:, token])
    kept = jax.vmap(other.acceptance, (None, 0))(d, at)
    # sum q - sum q a: exactly 0 where all is kept.
    rejected.append((d.q - d.q * kept).sum(-1))
  return (
    learned.features(d),
    d.q[token],
    d.p[token],
    methods.total_variation(d.p, d.q),
    *laws,
    *rejected,
  )


def read(
  decoder: sampler.Sampler,
  texts: Sequence[Text],
  held_out: float,
  chat: bool = False,
  kept: pathlib.Path | None = None,
) -> Places:
  """Has both models read texts.

  Args:
    decoder: Has the models, and how they are sampled.
    texts: From `gather`.
    held_out: Share of the examples that is held out, which a hash chooses.
    chat: Whether prompts are turns of a chat.
    kept: Where what was read is kept, so that it is not read again; None:
      nowhere.
  """
  features, q, p, price, *others = _columns(decoder, texts, chat, kept)
  laws, rejected = others[: len(COMPARED)], others[len(COMPARED) :]
  lengths = [len(text.tokens) for text in texts]
  numbers: dict[tuple[str, str], int] = {}
  example = [numbers.setdefault(text.example, len(numbers)) for text in texts]
  held = [_hash(text.example) < held_out for text in texts]
  weight = np.repeat([text.weight for text in texts], lengths)
  return Places(
    features=features,
    q=q,
    p=p,
    price=price,
    laws=dict(zip(COMPARED, laws, strict=True)),
    rejected=dict(zip(COMPARED, rejected, strict=True)),
    weight=weight / weight.sum(),
    example=np.repeat(example, lengths),
    held=np.repeat(held, lengths),
  )


def _columns(decoder, texts, chat, kept) -> list[np.ndarray]:
  """What `said_of` says of all tokens, float64."""
  asked = [(decoder.encode(text.prompt, chat), text.tokens) for text in texts]
  options = decoder.options
  of = (
    *pairing.fingerprints(decoder.verifier, decoder.equipped),
    *(options.temperature, options.gate, list(learned.FEATURES), COMPARED),
  )
  identity = records.digest([records.plain(of), asked])
  file = kept and kept / f'places-{identity[:16]}.npz'
  if file and file.is_file():
    with np.load(file, allow_pickle=False) as found:
      return [found[name] for name in found.files]
  said = scoring.each(decoder, asked, said_of)
  columns = [
    np.concatenate(column).astype(np.float64)
    for column in zip(*said, strict=True)
  ]
  if file:
    with atomic.replace_file(file) as part, part.open('wb') as out:
      np.savez_compressed(out, *columns)
  return columns


def _hash(example: tuple[str, str]) -> float:
  """From 0 to 1, whatever else there is."""
  return int(records.digest([*example])[:8], 16) / 16**8


def fit(
  places: Places,
  leniences: Sequence[float],
  softness: float,
  ridge: float,
) -> dict[str, float]:
  """The head for which (J) is least, the mean over leniences.

  Args:
    places: What it learns from.
    leniences: Prices of a rejection.
    softness: It defers by sigmoid((h - lam TV) / softness). The more, the
      smoother, and the more h is overstated: what is far from the border is
      worth more then.
    ridge: Of the squared distance from OPT's weights, of features of variance
      1.

  Returns:
    Weights by the names of `learned.FEATURES`, to six digits.
  """
  x, names = places.features, list(learned.FEATURES)
  mean = places.weight @ x
  scale = np.sqrt(places.weight @ (x - mean) ** 2)
  varies = scale > 1e-9
  scale = np.where(varies, scale, 1)
  # What is constant has no say, but for the one that is to be.
  x = np.where(varies, (x - mean) / scale, 0)
  one = names.index('one')
  x[:, one] = 1
  opt = np.array([learned.OPT.get(name, 0.0) for name in names])
  start = opt * scale
  start[one] = opt @ mean
  gain = places.p - places.q

  def objective(w):
    h, value, slope = x @ w, 0.0, np.zeros(len(x))
    for lam in leniences:
      cost = lam * places.price
      r = special.expit((h - cost) / softness)
      value += (places.weight * r * (cost - gain)).sum()
      slope += places.weight * r * (1 - r) * (cost - gain) / softness
    value, slope = value / len(leniences), slope / len(leniences)
    away = w - start
    return value + ridge * away @ away, slope @ x + 2 * ridge * away

  found = optimize.minimize(
    objective,
    start,
    jac=True,
    method='L-BFGS-B',
    # Most tokens are the same to both models: what there is to gain is little.
    options={'maxiter': 300, 'maxcor': 20, 'ftol': 1e-12, 'gtol': 1e-9},
  ).x
  # Back to the features as they are.
  weights = found / scale
  weights[one] = 0
  weights[one] = found[one] - weights @ mean
  return {
    name: float(f'{w:.6g}') for name, w in zip(names, weights, strict=True)
  }


class Losses(NamedTuple):
  """What a rule loses and pays, on average, at each of K leniences.

  Attributes:
    loss: Of what it lets through, [N, K].
    cost: In rejections, [N, K].
  """

  loss: Float[np.ndarray, 'N K']
  cost: Float[np.ndarray, 'N K']

  def at(self, price: float) -> Float[np.ndarray, 'N K']:
    """(J) of each token, where a rejection costs so much."""
    return self.loss + price * self.cost


def compare(
  places: Places, weights: Mapping[str, float], leniences: Sequence[float]
) -> dict[str, Losses]:
  """What rules lose and pay at tokens: the learned one, and all others.

  Args:
    places: Tokens.
    weights: Of the learned one.
    leniences: At which it is looked at.
  """
  row = np.array([weights.get(name, 0.0) for name in learned.FEATURES])
  h, price = places.features @ row, places.price[:, None]
  r = (h[:, None] > np.asarray(leniences) * price).astype(float)
  q, p = places.q[:, None], places.p[:, None]
  found = {learned.NAME: Losses(1 - q + r * (q - p), r * price)}
  found |= {
    name: Losses(1 - places.laws[name], places.rejected[name])
    for name in COMPARED
  }
  return found | {
    'never defer': Losses(1 - q, 0 * price),
    'always defer': Losses(1 - p, price),
  }


def judge(
  places: Places, weights: Mapping[str, float], leniences: Sequence[float]
) -> dict[str, Any]:
  """(J) of the learned rule and of others, on examples that are held out.

  At each price of a rejection every rule has the lenience that is best on the
  others.

  Returns:
    `leniences`; `objective`, by rule, at each; its mean over them, `mean`; and
    `gained`, by rule, by how much the learned one's mean is less, with a
    bootstrap interval over examples.
  """
  parts = [places.only(~places.held), places.only(places.held)]
  # All of them at leniences that are as near.
  own = sorted({*leniences, *np.linspace(-0.2, 1, 25).tolist()})
  train, test = (compare(part, weights, own) for part in parts)
  weight, example = parts[1].weight, parts[1].example
  objective, per_token = {}, {}
  for name in train:
    chosen = []
    for price in leniences:
      best = np.argmin(parts[0].weight @ train[name].at(price))
      chosen.append(test[name].at(price)[:, best])
    objective[name] = [float(weight @ x) for x in chosen]
    per_token[name] = np.mean(chosen, axis=0)

  def gained(name):
    less = per_token[name] - per_token[learned.NAME]
    _, number = np.unique(example, return_inverse=True)
    rows = [np.bincount(number, each) for each in (weight * less, weight)]
    low, high = stats.bootstrap_sums_interval(
      np.stack(rows, 1), lambda sums: sums[0] / sums[1]
    )
    return [float(weight @ less), float(low), float(high)]

  return {
    'leniences': list(leniences),
    'objective': objective,
    'mean': {name: float(np.mean(x)) for name, x in objective.items()},
    'gained': {n: gained(n) for n in objective if n != learned.NAME},
    'examples': len(np.unique(example)),
    'tokens': len(weight),
  }


def train_rule(
  config: ConfigDict, workdir: pathlib.Path
) -> tuple[pathlib.Path, dict[str, Any], dict[str, Any]]:
  """Trains a rule on what sweeps wrote, and judges it.

  Args:
    config: Fields of a training, such as those of configs/train_rule.py.
    workdir: The rule is written in a folder there.

  Returns:
    The folder, the figures, and how the sweeps were decoded.

  Raises:
    ValueError: The sweeps, or a field, will not do.
  """
  workdirs = [name for name in config.workdirs.split(',') if name]
  if not workdirs:
    raise ValueError(
      'workdirs: name a sweep of training examples with --config.workdirs=...'
    )
  if not 0 < config.held_out < 1:
    raise ValueError(
      f'held_out: {config.held_out} will not do; give a share above 0 and'
      ' below 1.'
    )
  if not config.softness > 0 or not config.ridge >= 0:
    raise ValueError(
      'softness: give a number above 0, and a ridge of 0 or more.'
    )
  of = settings(workdirs)
  texts = gather(config, workdirs)
  decoder = sampler.Sampler(
    of['verifier'],
    of['drafter'],
    method='speed',
    lenience=0.0,
    gamma=1,
    temperature=of['temperature'],
    gate=of['gate'],
    dtype=of['dtype'],
    batch_size=config.batch_size,
  )
  places = read(decoder, texts, config.held_out, of['chat'], workdir)
  if not 0 < places.held.mean() < 1:
    raise ValueError(
      f'held_out: {config.held_out} of the examples leaves nothing to learn'
      ' from, or nothing to judge by; give another share, or more examples.'
    )
  fields = config.leniences, config.softness, config.ridge
  weights = fit(places.only(~places.held), *fields)
  names = of['verifier'], of['drafter']
  prints = pairing.fingerprints(decoder.verifier, decoder.equipped)
  folder = workdir / config.name
  learned.save(folder, weights, names, prints)
  figures = judge(places, weights, config.leniences)
  figures |= {'texts': len(texts), 'all tokens': len(places.weight)}
  return folder, figures, of


_CARD = """---
library_name: cascades
---

# {name}

A deferral rule for `{verifier}` and `{drafter}`, and for no other pair:
Lemma 4 of Narasimhan et al. 2025 (arXiv 2405.19261) with a linear head in the
place of the difference of losses (`cascades/contrib/learned.py`).

- Data: {texts} texts that a sweep of the pair wrote to training examples, at
  temperature {temperature:g}, weighed by {score}; {all_tokens:,} tokens. Of
  the examples {held_out:.0%} are held out.
- Training: mean of the lemma's objective over {prices_all} leniences from
  {least:g} to {most:g}; L-BFGS, from OPT's weights.
- Retrain: `{command}`.

What is lost and paid for rejections, a token, on the {examples} examples that
are held out ({tokens:,} tokens), where a rejection costs {prices}, and the
mean over all leniences; of each rule at the lenience that is best on the other
examples. Last, by how much the learned rule's mean is less, with a 95 %
interval.

{table}

The weights:

{weights}

Use: `cascades.Sampler('{verifier}', '{drafter}',
method='learned:{name}')`, with this folder for the name where it is not
bundled.
"""


def write_card(
  folder: pathlib.Path,
  config: ConfigDict,
  figures: Mapping[str, Any],
  of: Mapping[str, Any],
  command: str,
) -> None:
  """Writes a card with these figures beside a rule.

  Args:
    folder: The rule's.
    config: Of its training.
    figures: From `train_rule`.
    of: How the sweeps were decoded.
    command: What trains it.
  """
  said = json.loads((folder / learned.FILE).read_text(encoding='utf-8'))
  # A few of the prices will do.
  shown = sorted({*np.linspace(0, len(config.leniences) - 1, 4).astype(int)})
  prices = [f'{figures["leniences"][i]:g}' for i in shown]
  table = [
    '| rule | ' + ' | '.join(prices) + ' | mean | learned, less |',
    '|---' * (len(prices) + 3) + '|',
  ]
  for name, values in figures['objective'].items():
    less = '-'
    if name in figures['gained']:
      less = '{:.4f} ({:.4f} to {:.4f})'.format(*figures['gained'][name])
    cells = ' | '.join(f'{values[i]:.4f}' for i in shown)
    table.append(
      f'| `{name}` | {cells} | {figures["mean"][name]:.4f} | {less} |'
    )
  weights = ['| feature | weight |', '|---|---|']
  weights += [f'| `{name}` | {w:g} |' for name, w in said['weights'].items()]
  text = _CARD.format(
    name=folder.name,
    verifier=of['verifier'],
    drafter=of['drafter'],
    texts=figures['texts'],
    temperature=of['temperature'],
    score=f'`{config.score}`' if config.score else 'quality',
    all_tokens=figures['all tokens'],
    held_out=config.held_out,
    prices_all=len(figures['leniences']),
    least=min(figures['leniences']),
    most=max(figures['leniences']),
    command=command,
    examples=figures['examples'],
    tokens=figures['tokens'],
    prices=', '.join(prices),
    table='\n'.join(table),
    weights='\n'.join(weights),
  )
  records.write_text(folder / 'README.md', text)
  text = json.dumps(figures, indent=2) + '\n'
  records.write_text(folder / 'figures.json', text)
