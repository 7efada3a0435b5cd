"""Results that a version of the results stands for, as hashes of integers.

`compute` gives, by name, what `data/fixed_results.json` holds: hashes of
tokens, sources and counts that are decoded here, of token ids, prompts and
scores.

Tables are decoded at random, and a draw near a boundary could fall on either
side of it on another device. So of each case the rows are found that stay the
same when both tables are moved (`TableCase.stable`), and only these are kept.
The rest is greedy or has no floats.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import eagle_test
import jax
import jax.numpy as jnp
import many_methods
import numpy as np
import small

import cascades
from cascades import decoding, drafters, methods, verification
from cascades.drafters.recurrent import recurrent_drafter
from cascades.methods import processing
from cascades.models import checkpoints, turns
from cascades.proof import exact
from configs import common
from experiments.sweeps import curve_plan, outcomes, plan, worker
from experiments.tasks import TASKS
from experiments.training import tokenizer_training

FILE = pathlib.Path(__file__).parent / 'data/fixed_results.json'
_TASKS = pathlib.Path(__file__).parent / 'data/tasks'

# Rows of each point of a case that are tried, and kept at the most.
_TRIED, KEPT = 12, 3
_NEW, _V, _CONTEXTS = 5, 5, 11
# How far tables are moved, and how often, to find the rows that stay the same:
# far enough for a margin of 1e-3 in every draw and comparison.
_MOVED, _MOVES = 4e-3, 12


def digest(value: Any) -> str:
  """A short hash of what JSON can hold."""
  text = json.dumps(value, sort_keys=True, ensure_ascii=False)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- Table models ---


@dataclasses.dataclass(frozen=True)
class _Model(exact.TableModel):
  """A table model whose contexts are said here, and nowhere else."""

  def _terms(self, tokens, positions):
    return (tokens + 1) * (positions * positions + 3 * positions + 1)


@dataclasses.dataclass(frozen=True)
class _Few(_Model):
  """It says three of the five tokens: a part of the vocabulary."""

  said = (0, 2, 3)

  def split_vocab_ids(self, params):
    said = jnp.array(self.said)
    return params[:, said], said


_MODEL, _PART = _Model(_V, _CONTEXTS), _Few(_V, _CONTEXTS)
_PROMPTS = ((1, 2, 3), (4, 0), (2, 2, 1, 0))


@functools.cache
def _table(name: str, scale: float = 2.0, size: int = _V) -> np.ndarray:
  """Logits that a name decides, whatever draws random numbers elsewhere."""
  wanted = _CONTEXTS * size
  drawn = b''.join(
    hashlib.sha256(f'{name} {i}'.encode()).digest()
    for i in range(-(-wanted // 32))
  )
  bytes_ = np.frombuffer(drawn[:wanted], np.uint8).astype(np.float32)
  return ((bytes_ - 127.5) / 64 * scale).reshape(_CONTEXTS, size)


def _moved(params: Any, number: int) -> Any:
  """Parameters, of which each number is moved a little; 0: not at all."""
  if not number:
    return params
  rng = np.random.default_rng(number)

  def one(x):
    if not jnp.issubdtype(x.dtype, jnp.floating):
      return x
    return x + np.float32(_MOVED) * rng.choice([-1, 1], x.shape).astype('f4')

  return jax.tree.map(one, params)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableCase:
  """Decodes table models in one compiled loop.

  Attributes:
    name: Of the case.
    points: Leniences of the method, each with its name.
    method: Decides what stays.
    drafter: Drafts, with its parameters.
    sampling: Temperature, truncation and forbidden tokens.
    gamma: Tokens per block.
    drafts: Drafts per block.
    config: How blocks are verified.
  """

  name: str
  points: tuple[tuple[str, float], ...]
  method: methods.Method
  drafter: drafters.BoundDrafter
  sampling: processing.SamplingParams
  gamma: int = 3
  drafts: int = 1
  config: verification.VerificationConfig = verification.STANDARD

  def decode(self, move: int = 0) -> list[list[list]]:
    """Returns the tokens of each row of each point, with perturbed tables."""
    step_config = decoding.StepConfig(
      decoding.Models(_MODEL, self.drafter.drafter),
      self.method,
      self.gamma,
      self.config,
      self.drafts,
    )
    prompts = list(itertools.islice(itertools.cycle(_PROMPTS), _TRIED))
    verifier, drafter = _moved((_table('verifier'), self.drafter.params), move)
    rows = exact.decode_curve(
      step_config,
      (verifier, drafter),
      exact.BatchRequest(
        prompts,
        jax.random.split(jax.random.key(11), _TRIED),
        [lenience for _, lenience in self.points],
        _NEW,
      ),
      self.sampling,
      capacity=_NEW,
    )
    return [
      [_written(rows, step_config, row, i) for row in range(_TRIED)]
      for i in range(len(self.points))
    ]

  def stable(self) -> list[list[int]]:
    """Returns the rows of each point that perturbed tables do not change."""
    want = self.decode()
    same = np.ones((len(self.points), _TRIED), bool)
    for move in range(1, _MOVES + 1):
      found = self.decode(move)
      same &= [
        [x == y for x, y in zip(*rows, strict=True)]
        for rows in zip(want, found, strict=True)
      ]
    return [np.flatnonzero(of_point)[:KEPT].tolist() for of_point in same]

  def digests(self, rows: Sequence[Sequence[int]]) -> dict[str, str]:
    """A hash of some rows of each point."""
    written = self.decode()
    return {
      f'{self.name} {name}': digest([of_point[i] for i in kept])
      for (name, _), of_point, kept in zip(
        self.points, written, rows, strict=True
      )
    }


def _written(rows, step_config, row, point) -> list:
  """Tokens, sources and counts of one row that was fetched."""
  one = jax.tree.map(lambda x: x[row, point], rows)
  new = slice(int(one.prompt_length), int(one.length))
  return [
    one.tokens[new].tolist(),
    one.source[new].tolist(),
    one.deferral[new].astype(int).tolist(),
    decoding.summarize_counts(one, sequential=step_config.sequential),
  ]


def _sampling(**changes) -> processing.SamplingParams:
  usual = dict(
    temperature=np.float32(0.8),
    top_k=np.int32(_V),
    top_p=np.float32(1),
    forbidden=np.zeros(_V, bool),
  )
  return processing.SamplingParams(**usual | changes)


_SAMPLING = {
  'plain': _sampling(),
  'truncated': _sampling(top_k=np.int32(3), top_p=np.float32(0.9)),
  'forbidden': _sampling(forbidden=np.arange(_V) == 2),
  'greedy': _sampling(temperature=np.float32(0)),
}
_DRAFTER = drafters.BoundDrafter(
  drafters.ModelDrafter(_MODEL), _table('drafter')
)
_TOKEN_V3 = methods.METHODS['token_v3']


def _leniences(method: methods.Method) -> list[float]:
  """A method's ends, and one between them."""
  inner = 2.0 if method.name == 'top_k' else 0.3
  ends = (method.strict, method.drafter_only)
  return list(dict.fromkeys([inner, *(x for x in ends if x is not None)]))


def _every(names: Sequence[str] | None = None) -> tuple:
  """Methods at their leniences, each with its name."""
  if names is None:
    every = methods.METHODS
    names = [n for n in every if every.is_builtin(n)]
  found = [methods.METHODS[name] for name in names]
  return tuple((m, x) for m in found for x in _leniences(m))


def _of_methods(pairs, with_rules=False) -> dict:
  """The fields of a case in which many methods are decoded side by side."""
  return dict(
    method=many_methods.from_functions(pairs, with_rules=with_rules),
    points=tuple((f'{m.name} {x:g}', i) for i, (m, x) in enumerate(pairs)),
  )


def _of_one(*leniences: float, method: methods.Method = _TOKEN_V3) -> dict:
  points = tuple((f'{method.name} {x:g}', x) for x in leniences)
  return dict(method=method, points=points)


def _method_cases() -> Iterator[TableCase]:
  """All methods, token by token."""
  of_all = _of_methods(_every())
  for name, sampling in _SAMPLING.items():
    yield TableCase(
      name=f'methods {name}', **of_all, drafter=_DRAFTER, sampling=sampling
    )


def _verification_cases() -> Iterator[TableCase]:
  """All verifications, of methods of three kinds."""
  of_some = _of_methods(_every(('speed', 'opt', 'token_v2')))
  of_rules = _of_methods(_every(('chow', 'opt', 'token_v2')), with_rules=True)
  for kind in verification.VERIFICATIONS:
    sequential = kind == verification.SEQUENTIAL
    yield TableCase(
      name=f'verification {kind}',
      **of_rules if sequential else of_some,
      drafter=_DRAFTER,
      sampling=_SAMPLING['plain'],
      config=verification.VerificationConfig(
        kind, 'processed', 'target' if sequential else 'verifier'
      ),
      drafts=1 + (kind in verification.MULTI_DRAFT),
    )


def _drafter_cases() -> Iterator[TableCase]:
  """Drafters that can draft for a table model."""
  near = _table('drafter') + np.float32(0.7) * _table('verifier')
  head = jax.tree.map(
    lambda x: np.round(np.asarray(x) * 64) / np.float32(64),
    recurrent_drafter.init_head(jax.random.key(4), _V),
  )
  of_head = head, _table('verifier')
  with tempfile.TemporaryDirectory() as folder:
    eagle, own = eagle_test.head_of_table(
      pathlib.Path(folder, 'head'), _MODEL, [0, 1, 2, 4]
    )
  found = {
    'stops': (
      drafters.ModelDrafter(_MODEL, adaptive=True),
      (near, np.float32(0.55)),
    ),
    'part of the vocabulary': (drafters.ModelDrafter(_PART), near),
    'ngram': (drafters.NgramDrafter(3, 1), ()),
    'recurrent': (drafters.RecurrentDrafter(_MODEL), of_head),
    'beam': (drafters.RecurrentDrafter(_MODEL, beam=True), of_head),
    'eagle': (eagle, (own, _table('verifier'))),
  }
  for name, bound_drafter in found.items():
    beam = name == 'beam'
    yield TableCase(
      name=f'drafter {name}',
      **_of_one(-0.1, 0.5),
      drafter=drafters.BoundDrafter(*bound_drafter),
      sampling=_SAMPLING['plain'],
      drafts=2 if beam else 1,
      config=verification.VerificationConfig('match')
      if beam
      else verification.STANDARD,
    )


def table_cases() -> list['TableCase | SamplerCase']:
  """All that is decoded of tables."""
  kinds = _method_cases, _verification_cases, _drafter_cases
  return [*(case for kind in kinds for case in kind()), SamplerCase()]


# --- Tables that speak the bundled tokenizer's tokens ---


@dataclasses.dataclass(frozen=True)
class SamplerCase:
  """Samples with seeds, stop strings and forbidden tokens.

  Attributes:
    name: Of the case.
    points: Seeds, each with its name.
  """

  name: str = 'sampler'
  points: tuple[tuple[str, int], ...] = (('0', 0), ('large', 2**40 + 3))

  def decode(self, move: int = 0) -> list[list[list]]:
    """Returns samples by prompt and seed, with perturbed tables."""
    tokenizer = cascades.load_model('tiny-drafter').tokenizer
    size = tokenizer.vocab_size
    tables = _moved(
      [_table(x, 2.0, size) for x in ('verifier', 'drafter')], move
    )
    pair = (
      checkpoints.Checkpoint(_Model(size, _CONTEXTS), x, tokenizer)
      for x in tables
    )
    sampler = small.sampler(
      *pair, method='token_v2', lenience=0.3, gamma=2, top_p=0.9, top_k=40
    )
    prompts = [f'{text} {i}' for i in range(4) for text in _TEXTS]
    return [
      [
        [a.tokens, a.sources, a.counts, a.text, a.ended]
        for a in sampler.sample(
          prompts[:_TRIED],
          max_new_tokens=8,
          seed=seed,
          forbidden_tokens=[7, 300],
          stop_strings=['e'],
        )
      ]
      for _, seed in self.points
    ]

  stable = TableCase.stable
  digests = TableCase.digests


# --- The bundled pair ---

_TEXTS = (
  'The number 4302 in words:',
  'The number 97 in words:',
  'Question: Mia has 3 apples and buys 4 more. How many has she?\nAnswer:',
)
_WITH = {
  'alone': dict(gamma=0),
  'tiny-drafter': dict(method='speed', lenience=0.0),
  'tiny-drafter token_v3': dict(lenience=0.5),
  'tiny-specialist': dict(method='opt', lenience=0.2),
  'tiny-recurrent': dict(method='speed', lenience=0.0),
  'self:3': dict(method='speed', lenience=0.0),
  'ngram:1': dict(method='speed', lenience=0.0),
}


def _of_assistant() -> list:
  """Decodes a small random Gemma 4 with its assistant, greedily."""
  names = 'hf_gemma4_dense', 'hf_gemma4_dense_assistant'
  folders = (str(FILE.parents[1] / 'fixtures' / name) for name in names)
  sampler = small.sampler(
    *folders, method='speed', lenience=0.0, temperature=0.0
  )
  answers = sampler.sample(_TEXTS, max_new_tokens=8)
  return [(a.tokens, a.sources, a.counts) for a in answers]


def pair_digests() -> dict[str, str]:
  """Decodes the bundled pair and its drafters, greedily."""
  verifier = cascades.load_model('tiny-verifier')
  found = {'assistant': digest(_of_assistant())}
  for name, options in _WITH.items():
    drafter = None if name == 'alone' else name.partition(' ')[0]
    sampler = small.sampler(verifier, drafter, temperature=0.0, **options)
    answers = sampler.sample(_TEXTS, max_new_tokens=24)
    found[f'pair {name}'] = digest(
      [(a.tokens, a.sources, a.counts) for a in answers]
    )
  return found


def sweep_digests() -> dict[str, str]:
  """Records that a sweep makes of the bundled pair greedily, and its seeds."""
  config = common.sweep(tasks=('numerals',), temperature=0.0, clock=0)
  curves = [
    curve_plan.Curve.from_config(config, 'verifier_only', ()),
    curve_plan.Curve.from_config(config, 'drafter_only', ()),
    curve_plan.Curve.from_config(config, 'token_v2', (0.1, 0.6), gamma=3),
    curve_plan.Curve.from_config(
      config, 'chow', (0.3,), verification='sequential'
    ),
  ]
  tasks = plan.configured_tasks(config)
  one = worker.Worker(config, curves, tasks)
  task = tasks['numerals']
  examples = list(task.load(num_examples=6))
  made = [one.decode_curve(task, curve, examples) for curve in curves]
  cascade = curve_plan.Curve.from_config(config, 'sequence_mean', (0.5,))
  made.append(outcomes.combine(cascade, made[1], made[0]))
  named = [*curves, cascade]
  found = {
    f'sweep {curve.name}': digest(
      [
        [
          dataclasses.asdict(record)
          | {'wall_s': 0, 'lenience': repr(record.lenience)},
          trace.tokens,
          trace.sources,
        ]
        for record, trace in of_curve
      ]
    )
    for curve, of_curve in zip(named, made, strict=True)
  }
  seeds = [one._sampler(curve)[1] for curve in curves]
  return found | {'sweep seeds': digest(seeds)}


# --- Texts: tokenizers, frames of turns, tasks ---

_WORDS = (
  'The number 4302 in words:',
  ' two  spaces\n\n\tand a tab, (brackets) and "quotes"\r\n',
  'naïve Straße Ωμέγα 数字 🙂 \x00 \u200b',
  '<start_of_turn>user\nHi<end_of_turn>\n<bos><eos><pad>',
  '',
)
_FRAMES = (
  ('<start_of_turn>', '<end_of_turn>'),
  ('<|turn>', '<turn|>'),
)


def tokenizer_digests() -> dict[str, str]:
  """Token ids of fixed texts, by the bundled tokenizer and in each frame."""
  bundled = cascades.load_model('tiny-drafter').tokenizer
  found = {
    'tokenizer bundled': digest([bundled.encode(text) for text in _WORDS])
  }
  texts = ['user model hello what is two and two', 'the quick brown fox'] * 40
  for tags in _FRAMES:
    tokenizer = tokenizer_training.train(texts, 330, tags)
    frame = turns.require_template(tokenizer)
    # A first turn, one after a finished answer, and one after a cut one.
    lasts = None, frame.end_token, 300
    found[f'chat {tags[0]}'] = digest(
      [[frame.encode(tokenizer, x, last) for last in lasts] for x in _WORDS]
    )
  return found


def task_digests() -> dict[str, str]:
  """Prompts and references of each task, and scores of fixed answers."""
  found = {}
  for name, task in TASKS.items():
    if name == 'file':
      # Its examples are the user's.
      continue
    given = {}
    if task.source is not None:
      # The sample of a published set that the tests have.
      given['path'] = str(min(_TASKS.glob(f'{name}.*')))
    examples = list(task.load(num_examples=8, **given))
    found[f'prompts {name}'] = digest(
      [dataclasses.astuple(e) for e in examples]
    )
    found[f'scores {name}'] = digest(_scores(task, examples))
  return found


def _scores(task, examples) -> list:
  """Scores of right answers and of others, in ten thousandths."""

  def answers(reference):
    first = reference if isinstance(reference, str) else (*reference, '')[0]
    return (first, first.upper(), f'{first}.\n\nQuestion: x', first[::-1], '')

  return [
    [
      sorted((k, round(1e4 * v)) for k, v in task.score(a, e.reference).items())
      for a in answers(e.reference)
    ]
    for e in examples
  ]


# --- All of them ---

# What is no table.
PARTS = pair_digests, sweep_digests, tokenizer_digests, task_digests


def compute(
  rows: Callable[[TableCase], list[list[int]]],
) -> dict[str, str]:
  """Everything, by name.

  Args:
    rows: Which rows of each point of a case are looked at.
  """
  found = {}
  for case in table_cases():
    found |= case.digests(rows(case))
  for part in PARTS:
    found |= part()
  return found


def write() -> None:
  """Writes the file anew, with rows that are stable."""
  rows = {case.name: case.stable() for case in table_cases()}
  kept = {'rows': rows, 'digests': compute(lambda case: rows[case.name])}
  # A line for each name.
  parts = [
    f'"{part}": {{\n'
    + ',\n'.join(f'  {json.dumps(k)}: {json.dumps(v)}' for k, v in of.items())
    + '\n}'
    for part, of in kept.items()
  ]
  text = '{\n' + ',\n'.join(parts) + '\n}\n'
  FILE.write_text(text, encoding='utf-8')


def read() -> dict[str, dict]:
  """Returns the content of the file: `rows` by case, `digests` by name."""
  return json.loads(FILE.read_text(encoding='utf-8'))
