"""Compares predictions with decoded answers; results are fixtures of a test.

Run by hand: PYTHONPATH=. python tests/prediction_references.py tiny
and `270m VERIFIER FILE`, with Gemma 3 270M and captions of Multi30k. It writes
fixtures/predictions_NAME.json: a row for each point, and the coverage of the
intervals, of 200 draws of 100 answers, of what 2,000 answers give.
"""

import itertools
import json
import math
import pathlib
import sys
import time

import numpy as np

import cascades
from cascades.sampler import predicting, scoring
from experiments.tasks import TASKS

_FIXTURES = pathlib.Path(__file__).parent / 'fixtures'
_DRAWS, _DRAWN = 200, 100
_DECODED = 'decoded', 'decoded_half', 'rate'


def _totals(answers):
  """Tokens per call with its half-width, and the acceptance, of answers."""
  tokens, calls, accepted, examined = (
    np.array([x.counts[name] if name else len(x.tokens) for x in answers])
    for name in (None, 'verifier_calls', 'accepted', 'examined')
  )
  ratio, error = tokens.sum() / calls.sum(), tokens / tokens.sum()
  error = np.linalg.norm(error - calls / calls.sum())
  return ratio, 1.96 * ratio * error, accepted.sum() / examined.sum()


def compare(
  pair,
  prompts,
  *,
  rules,
  temperatures,
  gammas,
  request,
  count,
  rows,
  earlier=(),
):
  """Yields what is decoded, if not `earlier`, and predicted of each point."""
  names = 'temperature gamma method lenience'.split()
  decoded = {tuple(x[y] for y in names): x for x in earlier if 'decoded' in x}
  for temperature in temperatures:
    config = cascades.DecodingConfig(temperature=temperature, batch_size=rows)

    def decode(method, leniences, gamma, n, seed, config=config):
      config = config.replace(method=method, lenience=leniences[0], gamma=gamma)
      sampler = cascades.Sampler(*pair, config=config)
      return sampler, sampler.sample_curve(
        prompts[:n], leniences, seed=seed, **request
      )

    sampler, (answers,) = decode('speed', [0.0], 0, count, 1)
    contexts = [sampler.encode(prompt) for prompt in prompts]

    def texts_of(answers, contexts=contexts):
      return [(x, y.tokens) for x, y in zip(contexts, answers, strict=False)]

    own, mean = {}, sum(len(x.tokens) for x in answers) / count
    own_count = math.ceil(1000 / mean)
    for name, leniences in rules.items():
      few = [leniences[i * (len(leniences) - 1) // 3] for i in (1, 2, 3)]
      _, points = decode(name, few, 4, own_count, 2)
      own |= {(name, x): texts_of(y) for x, y in zip(few, points, strict=True)}
    start = time.perf_counter()
    prediction = cascades.predict(
      *pair, texts_of(answers), rules=rules, config=config, own_texts=own
    )
    seconds = time.perf_counter() - start
    print(f'{seconds:.0f} s, {prediction.notes}', flush=True)
    predicted = {(x.method, x.lenience, x.gamma): x for x in prediction.points}
    for gamma, (name, leniences) in itertools.product(gammas, rules.items()):
      keys = [(temperature, gamma, name, x) for x in leniences]
      if any(key not in decoded for key in keys):
        _, points = decode(name, leniences, gamma, len(prompts), 3)
        for key, of_point in zip(keys, points, strict=True):
          totals = zip(_DECODED, _totals(of_point), strict=True)
          decoded[key] = {x: float(f'{y:.5g}') for x, y in totals}
      for key, lenience in zip(keys, leniences, strict=True):
        row = predicted[name, lenience, gamma]._asdict()
        row |= {'temperature': temperature, 'acceptance': None}
        row = {
          x: float(f'{y:.5g}') if isinstance(y, float) else y
          for x, y in row.items()
          if y is not None
        }
        yield row | {x: decoded[key][x] for x in _DECODED}


def _coverage(pair, prompts, tokens, count):
  """The share of draws whose interval holds the value of all answers."""

  def answer(seed, **options):
    config = cascades.DecodingConfig(**options)
    sampler = cascades.Sampler(*pair, config=config)
    answers = sampler.sample(prompts, max_new_tokens=tokens, seed=seed)
    contexts = map(sampler.encode, prompts)
    return [(x, y.tokens) for x, y in zip(contexts, answers, strict=True)]

  method, lenience = rule = 'opt', 0.3
  texts = answer(4, gamma=0)
  own = answer(5, method=method, lenience=lenience)
  # Read once: no draw has two answers to a prompt.
  read, cache = scoring.map_tokens, {}

  def map_tokens(decoder, requests, *args):
    keys = [(tuple(x), tuple(y)) for x, y in requests]
    new = [(x, y) for x, y in dict.fromkeys(keys) if (x, y) not in cache]
    ends = np.cumsum([len(y) for _, y in new])[:-1]
    parts = [np.split(x, ends) for x in read(decoder, new, *args)]
    cache.update(zip(new, zip(*parts, strict=True), strict=True))
    return [*map(np.concatenate, zip(*map(cache.get, keys), strict=True))]

  scoring.map_tokens = map_tokens

  def predict(selected, count):
    options = dict(rules={method: [lenience]}, gammas=(4, 12))
    options['own_texts'] = {rule: [own[i] for i in selected[:count]]}
    given = [texts[i] for i in selected]
    return cascades.predict(*pair, given, **options).points

  pool = predict(range(len(texts)), len(texts))
  rng, covered = np.random.default_rng(0), np.zeros(len(pool))
  for _ in range(_DRAWS):
    drawn = predict(rng.permutation(len(texts))[:_DRAWN], count)
    covered += [
      x.low <= y.tokens_per_call <= x.high
      for x, y in zip(drawn, pool, strict=True)
    ]
  names = 'method', 'lenience', 'gamma'
  return [
    {name: getattr(x, name) for name in names} | dict(coverage=y / _DRAWS)
    for x, y in zip(pool, covered, strict=True)
  ]


def main(name: str, *paths: str) -> None:
  """Writes the fixture of a pair."""
  if name == 'tiny':
    pair = 'tiny-verifier', 'tiny-drafter'
    task, options = TASKS['word_problems'], dict(split='test')
    shape = dict(temperatures=(1.0, 0.0), gammas=(4, 12), rows=64)
    shape['request'] = dict(max_new_tokens=32)
    rules = dict.fromkeys(predicting.RULES, predicting.LENIENCES)
    shape['count'], num_prompts = 100, 500
  else:
    pair = paths[0], 'gemma3-270m-multi30k-de-en'
    task, options = TASKS['multi30k_de_en'], dict(path=paths[1], shots=4)
    rules = dict(speed=(0.0,), token_v3=(0.3, 0.5, 0.8), opt=(0.0, 0.1))
    rules |= dict(chow=(0.2, 0.4))
    shape = dict(temperatures=(1.0,), gammas=(4,), count=150, rows=8)
    shape['request'] = dict(max_new_tokens=48, stop_strings=task.stop_strings)
    num_prompts = 200
  pair = [cascades.load_model(x, 'int8' if paths else None) for x in pair]
  examples, _ = task.read(num_examples=num_prompts, seed=0, **options)
  prompts = [x.prompt for x in examples]
  path, rows = _FIXTURES / f'predictions_{name}.json', []
  if path.exists():
    shape['earlier'] = [*map(json.loads, path.read_text().splitlines())]
  for row in compare(pair, prompts, rules=rules, **shape):
    print(row, flush=True)
    rows.append(row)
  if name == 'tiny':
    examples, _ = task.read(num_examples=2000, seed=0, **options)
    rows += _coverage(pair, [x.prompt for x in examples], 32, 40)
    print(rows[-6:])
  path.write_text('\n'.join(map(json.dumps, rows)) + '\n')


if __name__ == '__main__':
  main(*sys.argv[1:])
