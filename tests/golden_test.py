"""Golden results: short hashes of what the results version stands for.

Command: PYTHONPATH=. python tests/golden_test.py
Writes: tests/data/golden.json
"""

import dataclasses
import hashlib
import json
import pathlib
import tempfile

import cases
import conftest  # noqa: F401  # Says how programs are compiled.
import eagle_test
import jax
import numpy as np
import pytest
import small
import tiers

import cascades
from cascades import decoding, drafters, methods, verification
from cascades.drafters.recurrent import init_head
from cascades.methods import processing
from cascades.models import chat
from cascades.proof import sampled, table_models
from cascades.sampler import batching
from configs import common
from experiments.records import results_version
from experiments.sweeps import curve_plan, plan, worker
from experiments.tasks import TASKS

_ADVICE = (
  'results changed; if that is meant, raise RESULTS_VERSION in experiments/'
  'records/results_version.py, and run PYTHONPATH=. python tests/golden_test.py'
)
FILE = pathlib.Path(__file__).parent / 'data/golden.json'
_TEXTS = (
  'The number 4302 in words:',
  'Question: Mia has 3 apples and buys 4 more. How many has she?\nAnswer:',
)
_MODEL = table_models.TableModel(5)
_PROMPTS = [(1, 2, 3), (4, 0), (2, 2, 1, 0), (3, 3)]
_METHODS = (
  'chow opt token_v2 lossy mentored fuzzy_js typical ensemble contrastive top_k'
)


def _table(number: int) -> np.ndarray:
  """Returns random logits."""
  return np.asarray(_MODEL.init_params(jax.random.key(number)), np.float32)


def _tables(names, drafter=None, kind='token', drafts=1) -> list:
  """Decodes table models with methods side by side, in one loop."""
  pairs = [(methods.METHODS[x], 2.0 if x == 'top_k' else 0.3) for x in names]
  bound = drafters.BoundDrafter(
    *drafter or (drafters.ModelDrafter(_MODEL), _table(1))
  )
  step_config = decoding.StepConfig(
    decoding.Models(_MODEL, bound.drafter),
    cases.from_functions(pairs),
    3,
    verification.VerificationConfig(kind, 'processed', 'verifier'),
    drafts,
  )
  keys = jax.random.split(jax.random.key(11), len(_PROMPTS))
  rows = sampled.decode_curve(
    step_config,
    (_table(0), bound.params),
    batching.BatchRequest(_PROMPTS, keys, [*range(len(pairs))], 5),
    processing.SamplingParams(
      temperature=np.float32(0.8),
      top_k=np.int32(4),
      top_p=np.float32(0.95),
      forbidden=np.zeros(5, bool),
    ),
    capacity=5,
  )

  def answer(row, i):
    row = jax.tree.map(lambda x: x[row, i], rows)
    new = slice(int(row.prompt_length), int(row.length))
    counts = decoding.summarize_counts(row)
    return [row.tokens[new].tolist(), row.source[new].tolist(), counts]

  return [[answer(x, i) for x in range(4)] for i in range(len(pairs))]


def _verification(kind) -> list:
  drafts = 1 + (kind in verification.MULTI_DRAFT)
  return _tables(('speed', 'opt', 'token_v2'), kind=kind, drafts=drafts)


def _drafter(name) -> list:
  head = jax.tree.map(
    lambda x: np.round(np.asarray(x) * 64) / np.float32(64),
    init_head(jax.random.key(4), 5),
  )
  with tempfile.TemporaryDirectory() as folder:
    eagle, params = eagle_test.head_of_table(
      pathlib.Path(folder, 'head'), _MODEL, [0, 1, 2, 4]
    )
  recurrent = drafters.RecurrentDrafter(_MODEL, beam=name == 'beam')
  model = drafters.ModelDrafter(_MODEL, adaptive=True)
  drafter = {
    'adaptive': (model, (_table(0) + _table(1), np.float32(0.55))),
    'ngram': (drafters.NgramDrafter(3, 1), ()),
    'eagle': (eagle, (params, _table(0))),
  }.get(name, (recurrent, (head, _table(0))))
  options = dict(kind='match', drafts=2) if name == 'beam' else {}
  return _tables(('token_v3',), drafter, **options)


def _answers(verifier, drafter=None, **options) -> list:
  """Returns answers of bundled models, or of small ones of a family."""
  pair = (x and cases.named(x) for x in (verifier, drafter))
  usual = dict(method='speed') if drafter else dict(gamma=0)
  sampler = small.sampler(*pair, **dict(temperature=0.0) | usual | options)
  answers = sampler.sample(_TEXTS, max_new_tokens=8, seed=2**40 + 3)
  return [(a.tokens, a.sources, a.counts, a.text, a.ended) for a in answers]


def _sampled(drafter) -> list:
  options = dict(method='token_v2', lenience=0.3, gamma=2, temperature=1.0)
  return _answers('tiny-verifier', drafter, **options, top_p=0.9, top_k=40)


def _sweep(_) -> list:
  """Returns records of a sweep of the bundled pair, and its seed."""
  config = common.sweep(tasks=('numerals',), temperature=0.0, clock=0)
  curve = curve_plan.Curve.from_config(config, 'token_v2', (0.1, 0.6), gamma=3)
  tasks = plan.configured_tasks(config)
  decoder = worker.Worker(config, [curve], tasks)
  examples = list(tasks['numerals'].load(num_examples=4))
  outcomes = decoder.decode_curve(tasks['numerals'], curve, examples)
  return [decoder._sampler(curve)[1]] + [
    [x.id, x.lenience, x.text, x.scores, x.verifier_calls, trace.sources]
    for x, trace in outcomes
  ]


def _tokenizer(name) -> list:
  tokenizer = cascades.load_model(name).tokenizer
  text = ' two  spaces\n\n\ta "tab"\r\n naïve Ωμέγα 数字 🙂 \x00 <bos><pad>'
  return [tokenizer.encode(x) for x in (*_TEXTS, text, '')]


def _frame(tag) -> list:
  """Returns ids of a first turn, one after an answer, and after a cut one."""
  tags = tag, {'<|turn>': '<turn|>'}.get(tag, '<end_of_turn>')
  texts = ['user model hello what is two and two', 'the quick brown fox'] * 40
  tokenizer = small.tokenizer(texts, 330, tags)
  frame = chat.require_template(tokenizer)
  texts = *_TEXTS, f'{tags[0]}user\nHi{tags[1]}\n<bos><eos>', ''
  lasts = None, frame.end_token, 300
  return [frame.encode(tokenizer, x, last) for x in texts for last in lasts]


def _task(name) -> list:
  """Returns examples of a task, and scores of right and wrong answers."""
  task, path = TASKS[name], None
  if task.source is not None:
    path = str(min((FILE.parent / 'tasks').glob(f'{name}.*')))
  made = []
  for example in task.load(num_examples=4, **{'path': path} if path else {}):
    reference = example.reference
    first = reference if isinstance(reference, str) else (*reference, '')[0]
    answers = first, first.upper(), f'{first}.\n\nQuestion: x', first[::-1], ''
    scores = [task.score(answer, reference) for answer in answers]
    scores = [{k: round(1e4 * v) for k, v in x.items()} for x in scores]
    made.append([dataclasses.astuple(example), scores])
  return made


_VERIFICATIONS = 'block k_seq look_ahead match multi_round token traversal'
_FAMILIES = 'gemma2 gemma3 gemma3n gemma4_dense gemma4_experts gemma4_shared'
_TASKS = sorted({*TASKS.core()} - {'file'})
# By part: makes the results of a name, and the names.
_PARTS = {
  'methods': (lambda x: _tables(x.split()), [_METHODS]),
  'verification': (_verification, _VERIFICATIONS.split()),
  'drafter': (_drafter, 'adaptive ngram recurrent beam eagle'.split()),
  'pair': (lambda x: _answers('tiny-verifier', x), ['tiny-drafter', 'self:3']),
  'assistant': (lambda x: _answers(x, f'{x}_assistant'), ['hf_gemma4_dense']),
  'bundled': (lambda x: _answers(x), ['tiny-verifier']),
  'family': (lambda x: _answers(f'hf_{x}'), _FAMILIES.split()),
  'sampled': (_sampled, ['tiny-drafter']),
  'sweep': (_sweep, ['tiny-drafter']),
  'tokenizer': (_tokenizer, ['tiny-drafter']),
  'frame': (_frame, ['<start_of_turn>', '<|turn>']),
  'task': (_task, _TASKS),
}
CASES = {f'{k} {x}': (f, x) for k, (f, names) in _PARTS.items() for x in names}
# Other cases of the first tier have their verification, drafter and gate.
_SLOW = 'bundled', 'family', 'sampled', 'pair tiny', 'drafter recurrent'
_SLOW += 'verification match', 'verification token'
_TIERS = sorted(CASES, key=lambda case: case.startswith(_SLOW))


def _digest(case: str) -> str:
  function, name = CASES[case]
  text = json.dumps(function(name), sort_keys=True, ensure_ascii=False)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize('case', tiers.first(_TIERS, len(CASES) - 12))
def test_results_are_those_of_their_version(case):
  golden = json.loads(FILE.read_text(encoding='utf-8'))
  wanted = results_version.RESULTS_VERSION, _digest(case)
  assert (golden['version'], golden['results'].get(case)) == wanted, _ADVICE


if __name__ == '__main__':
  results = {case: _digest(case) for case in CASES}
  golden = {'version': results_version.RESULTS_VERSION, 'results': results}
  FILE.write_text(json.dumps(golden, indent=1) + '\n', encoding='utf-8')
