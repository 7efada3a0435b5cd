"""Cases of the contract: a new entry of the library is a line here.

  VERIFICATIONS  a name of each verification, with the drafts of its blocks
  DRAFTERS       a builder of each kind of drafter, for one table model
  PAIRS          verifiers of every model family, with a drafter of every kind
  METHODS        every method, at a lenience between its limits
  FORMATS        a writer of each checkpoint format, and what it can hold

Two tables whose rows no proof can mistake for each other are the models, and
`generate` runs them through the compiled loop.
"""

import dataclasses
import functools
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import small
from scipy import special

from cascades import decoding, drafters, methods, verification
from cascades.drafters import recurrent
from cascades.methods import processing
from cascades.models import checkpoints, gemma_library
from cascades.proof import sampled, table_models
from cascades.sampler import batching
from cascades.verification_config import SINGLE_DRAFT

SIZE, NEW, PROMPT = 5, 3, (1, 2, 3)
PROMPTS = (1,), (2, 4), (3, 3, 3), (0, 1, 2, 3, 4), (1, 2, 1, 2, 1)
# A row for each text of a block of three drafts, and none like another.
MODEL = table_models.TableModel.injective(SIZE, 3)
VERIFIER, DRAFTER = table_models.random_tables(
  MODEL, [jax.random.key(83), jax.random.key(84)]
)
# Its favourites are the verifier's now and then.
NEAR = DRAFTER + 0.7 * VERIFIER


# --- Sampling


def sampling_of(temperature=1.0, top_k=SIZE, top_p=1.0, forbidden=(), draft=1):
  """With all that a sampler may be asked for, so that it compiles once."""
  return processing.SamplingParams(
    temperature=np.float32(temperature),
    top_k=np.int32(top_k),
    top_p=np.float32(top_p),
    forbidden=np.isin(np.arange(SIZE), forbidden),
    draft_temperature=np.float32(draft * temperature),
  )


SAMPLING = {
  'plain': sampling_of(),
  'greedy': sampling_of(0.0),
  'forbidden, truncated': sampling_of(0.7, 2, 0.9, (0, 3)),
  'argmax drafts': sampling_of(0.7, 3, 0.9, (3,), draft=0),
  'truncated': sampling_of(0.7, 3, 0.9),
  'nearly greedy': sampling_of(1e-9),
  'forbidden': sampling_of(1.3, forbidden=(1,)),
  'forbidden, greedy': sampling_of(0.0, forbidden=(0, 3)),
}
# Of these, what is enough where another test has all.
FEW = tuple(SAMPLING)[:4]


# --- Methods and verifications

METHODS = tuple(
  (method, 2.0 if method.name == 'top_k' else 0.3)
  for method in methods.METHODS.values()
)
# Methods of each family that run as they are, not as tables: at their strict
# limits; between: rules for the whole position, for tokens, targets that are
# searched for, an acceptance that is not its law's, lenient decoding, laws that
# do not cover p, and p itself.
STRICT = tuple(
  (methods.METHODS[name], methods.METHODS[name].strict)
  for name in ('speed', 'chow', 'diff', 'token_v1', 'token_v3')
)
LENIENT = tuple(
  (methods.METHODS[name], 0.3)
  for name in (
    'diff opt token_v1 token_v2 token_v3 lossy typical speed min_p cactus'
    ' contrastive always_accept verifier_only accept_threshold'
  ).split()
)

VERIFICATIONS = dict.fromkeys(SINGLE_DRAFT, 1) | {'look_ahead:2': 1}
VERIFICATIONS |= dict.fromkeys(verification.MULTI_DRAFT, 3)
ONE_DRAFT = tuple(x for x, drafts in VERIFICATIONS.items() if drafts == 1)


def distributions(config, sampling, drafter_table=DRAFTER):
  """The distributions that the loop sees in each context."""
  return table_models.table_distributions(
    VERIFIER, drafter_table, sampling, config.gate
  )


# --- Drafters


class Case(NamedTuple):
  """A drafter of the table model; its logits where a text decides them."""

  bound: drafters.BoundDrafter
  table: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class PartialModel(table_models.TableModel):
  """A model of three of the five tokens."""

  draft_vocab_ids = (0, 2, 3)

  def split_vocab_ids(self, params):
    ids = jnp.array(self.draft_vocab_ids)
    return params[:, ids], ids

  def unembed(self, params, hidden):
    ids = jnp.array(self.draft_vocab_ids)
    if params.shape[-1] == len(ids):
      return hidden[ids]
    return processing.scatter_to_vocab(hidden[ids], ids, self.vocab_size)


PARTIAL = PartialModel.injective(SIZE, 3)
HEAD = recurrent.init_head(jax.random.key(4), SIZE)


def _of_table(drafter, table=NEAR, *more) -> Case:
  params = (table, *more) if more else table
  return Case(drafters.BoundDrafter(drafter, params), table)


def _recurrent(model=MODEL, beam=False) -> Case:
  drafter = drafters.RecurrentDrafter(model, beam=beam)
  return Case(drafters.BoundDrafter(drafter, (HEAD, VERIFIER)))


def _eagle() -> Case:
  import eagle_test

  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'head')
    drafter, own = eagle_test.head_of_table(path, MODEL, [0, 1, 2, 4])
  return Case(drafters.BoundDrafter(drafter, (own, VERIFIER)))


# Assistants look at a Gemma's cache, which no table has: see `PAIRS`.
DRAFTERS: dict[str, Callable[[], Case]] = {
  # No table of the other two models: they never agree on a favourite.
  'apart': lambda: _of_table(drafters.ModelDrafter(MODEL), DRAFTER),
  'model': lambda: _of_table(drafters.ModelDrafter(MODEL)),
  # It drafts wherever a text is that has its last token already.
  'ngram': lambda: Case(drafters.BoundDrafter(drafters.NgramDrafter(3, 1), ())),
  'recurrent': _recurrent,
  'beam': lambda: _recurrent(beam=True),
  'partial': lambda: _of_table(
    drafters.ModelDrafter(PARTIAL), NEAR.at[:, jnp.array([1, 4])].set(-jnp.inf)
  ),
  'partial recurrent': lambda: _recurrent(PARTIAL),
  'partial beam': lambda: _recurrent(PARTIAL, beam=True),
  'adaptive': lambda: _of_table(
    drafters.ModelDrafter(MODEL, adaptive=True), NEAR, jnp.float32(0.55)
  ),
  'self': lambda: _of_table(drafters.SelfDrafter(MODEL)),
  'eagle': _eagle,
}


@functools.cache
def drafter(name: str) -> Case:
  """Builds a drafter once."""
  return DRAFTERS[name]()


def drafts_of(name: str, kind: str) -> int:
  """Drafts per block of a drafter and a verification."""
  most = drafter(name).bound.drafter.max_drafts
  return min(VERIFICATIONS[kind], most or VERIFICATIONS[kind])


# --- Checkpoints: a verifier of each family, and a drafter of each kind

_SEVERAL = dict(drafts=3, verification='multi_round')
PAIRS = [
  ('hf_gemma2', 'self:2', {}),
  ('hf_gemma3', 'eagle3_joined', _SEVERAL),
  ('hf_gemma3n', 'hf_gemma3', {}),
  ('hf_gemma4_dense', 'hf_gemma4_dense_assistant', {}),
  ('hf_gemma4_experts', 'hf_gemma4_experts_assistant', {}),
  ('hf_gemma4_shared', 'hf_gemma4_shared_assistant', _SEVERAL),
  *(
    ('tiny-verifier', name, options)
    for name, options in (
      *((f'ngram:{n}', {}) for n in (1, 3)),
      ('self:2', {}),
      ('self:4', dict(drafts=2, verification='match')),
      ('tiny-recurrent', dict(drafts=4, verification='match', beam=True)),
      *(
        ('tiny-recurrent', x)
        for x in ({}, _SEVERAL | dict(verification='k_seq'))
      ),
      *(('tiny-drafter', dict(verification=x)) for x in ONE_DRAFT[1:]),
      *(('tiny-drafter', x) for x in (_SEVERAL, dict(stop_below=0.8))),
      ('tiny-drafter', dict(drafts=2, verification='traversal')),
    )
  ),
]


def named(name: str) -> str:
  """A fixture's folder, or the name itself."""
  path = small.FIXTURES / name
  return str(path) if path.exists() else name


# --- Checkpoint formats

CLASSIC = 'hf_gemma2', 'hf_gemma3'
FAMILIES = tuple(name for name, *_ in PAIRS if name.startswith('hf_'))


class Format(NamedTuple):
  """A writer, models that it writes, and how a parameter may differ."""

  write: Callable[[pathlib.Path, checkpoints.Checkpoint, pathlib.Path], object]
  models: tuple[str, ...] = CLASSIC
  dtype: str | None = None
  bound: float = 0.0
  # Of what is loaded, in the folder that is written.
  name: str = ''


def saved(**options):
  return lambda folder, x, _: checkpoints.save_model(folder, x, **options)


def write_orbax(folder, checkpoint, source):
  """Writes what gemma's downloads are: files beside the checkpoint."""
  save = gemma_library.import_gemma().ckpts.save_params
  save(checkpoint.params, folder / 'x', wait_until_finished=True)
  (folder / 'tokenizer.model').write_bytes(checkpoint.tokenizer.proto)
  shutil.copy(source / 'config.json', folder)


def write_gguf(folder, checkpoint, _):
  from fixtures import gguf_writer

  gguf_writer.save_gguf(folder / 'x.gguf', checkpoint)


FORMATS = {
  'safetensors': Format(saved(), FAMILIES),
  'eight bits': Format(
    saved(stored='int8'), (*CLASSIC, 'hf_gemma4_shared'), dtype='int8'
  ),
  # Norms are stored plus 1, of which float32 has 24 bits.
  'gguf': Format(
    write_gguf, ('hf_gemma2', 'tiny-verifier'), bound=2.0**-22, name='x.gguf'
  ),
  'orbax': Format(write_orbax, FAMILIES, name='x'),
}


# --- The loop

# What all small runs have in common, so that they are one program: rows are
# filled up to so many, caches have room for so many new tokens.
ROWS, ROOM = 256, 12
# Rows of the programs that sample at length, and of each of their batches.
MANY = 2100
# Least p-value of a loop with a sampling: .01 for all, of which there are 400.
LEVEL = 0.01 / 400


def generate(
  method='token_v3',
  leniences=(0.3,),
  gamma=3,
  rows=1,
  *,
  new=NEW,
  sampling=SAMPLING['plain'],
  prompts=None,
  stops=(-1,),
  seed=0,
  config=verification.STANDARD,
  bound=None,
  drafts=1,
  tree_size=None,
  filled=ROWS,
  room=ROOM,
  return_logits=True,
  return_logprobs=False,
):
  """Final states of `rows` rows, numpy; an array of leniences: one for each."""
  prompts = [PROMPT] * rows if prompts is None else prompts
  keys = jax.random.split(jax.random.key(seed), len(prompts))
  paired = isinstance(leniences, np.ndarray)
  shape = (len(prompts),) if paired else (len(prompts), len(leniences))
  # Each prompt at each lenience, and the first of them again and again.
  of_prompt = np.repeat(np.arange(len(prompts)), 1 if paired else shape[1])
  leniences = leniences if paired else np.tile(leniences, shape[0])
  count = len(of_prompt)
  whole = np.pad(np.arange(count), (0, -count % filled))
  places, leniences = of_prompt[whole], np.asarray(leniences)[whole]
  bound = bound or drafter('apart').bound
  if not gamma:
    bound = drafters.BoundDrafter(drafters.NoDrafter(), DRAFTER)
  models = decoding.Models(MODEL, bound.drafter)
  method, texts = methods.get_method(method), [prompts[i] for i in places]
  request = batching.BatchRequest(
    texts,
    keys[places],
    leniences,
    new,
    return_logits=return_logits,
    return_logprobs=return_logprobs,
  )
  states = sampled.decode_curve(
    decoding.StepConfig(models, method, gamma, config, drafts, tree_size),
    (VERIFIER, bound.params),
    request,
    sampling,
    stop_tokens=np.append(stops, [-1] * (2 - len(stops))),
    capacity=room,
  )
  return jax.tree.map(lambda x: x[:count].reshape(shape + x.shape[1:]), states)


def one_branch(index, branches, *args):
  """`lax.switch` by the first row of a batch: others' branches do not run."""
  switch = jax.custom_batching.custom_vmap(
    lambda i, *x: jax.lax.switch(i, branches, *x)
  )

  @switch.def_vmap
  def _(_, is_batched, index, *args):
    first, *axes = jax.tree.map(lambda x: 0 if x else None, is_batched)
    inner = [jax.vmap(branch, axes) for branch in branches]
    return one_branch(index if first is None else index[0], inner, *args), True

  return switch(index, *args)


def from_functions(pairs, select=jax.lax.switch):
  """A method for which the lenience i selects the i-th of some methods."""
  # A method with several leniences is compiled once.
  unique = {method.name: method for method, _ in pairs}
  names, leniences = zip(*((x.name, y) for x, y in pairs), strict=True)
  branch_indices = np.array([[*unique].index(name) for name in names])

  def switch(field):
    def branch(method):
      function = getattr(method, field)
      return lambda d, lenience: jnp.broadcast_to(
        function(d, lenience), d.q.shape
      ).astype(d.q.dtype)

    branches = [branch(method) for method in unique.values()]

    def run(d, i):
      i = i.astype(jnp.int32)
      lenience = jnp.asarray(leniences, d.q.dtype)[i]
      return select(jnp.asarray(branch_indices)[i], branches, d, lenience)

    return run

  return methods.Method(
    **dict(name='from_functions', equation='', strict=None, drafter_only=None),
    law_uses_q=any(method.law_uses_q for method in unique.values()),
    **{name: switch(name) for name in ('acceptance', 'residual', 'law')},
  )


def mixed(method, *args, **options):
  """Final states of many rows, of a method of `from_functions`."""
  usual = dict(filled=MANY, return_logprobs=True)
  with conftest.optimised():
    return generate(method, *args, **usual | options)


def new_tokens(state, *index):
  """The tokens that a row emitted."""
  row = jax.tree.map(lambda x: x[index], state)
  return row.tokens[row.prompt_length : row.length].tolist()


def greedy(prompt, new, table=VERIFIER):
  """The greedy tokens of a table: a forward pass each, and no cache."""
  table, tokens = np.asarray(table), list(prompt)
  for _ in range(new):
    tokens.append(int(table[MODEL.context_after(tokens)].argmax()))
  return tokens[len(prompt) :]


def check_samples(tokens, methods_of_rows, laws, name=''):
  """That the rows of each method follow its law, and all of them together."""
  assert np.abs(laws.reshape(len(laws), -1).sum(1) - 1).max() < 1e-5
  tests = [
    sampled.g_test(tokens[methods_of_rows == i], law)
    for i, law in enumerate(laws)
  ]
  # A fault that is small in each of them is not in all.
  statistics, degrees = np.array([*tests, np.sum(tests, 0)]).T
  p_values = special.chdtrc(degrees, statistics)
  assert p_values.min() > LEVEL / len(p_values), (name, p_values)


def check_drawn(run, laws, case, indices, prompt=PROMPT):
  """That the rows of batches, of the laws of such indices, follow these."""
  options = dict(sampling=SAMPLING[case], prompts=[prompt] * MANY)
  states = [run(x, seed=seed, **options) for seed, x in enumerate(indices)]
  new = slice(len(prompt), len(prompt) + laws.ndim - 1)
  tokens = np.concatenate([x.tokens[:, new] for x in states])
  assert not options['sampling'].forbidden[tokens].any()
  check_samples(tokens, np.concatenate(indices), laws, case)
  return states
