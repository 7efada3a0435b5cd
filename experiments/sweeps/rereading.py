"""Both models read once more what a sweep wrote, at several leniences at once.

Of each curve the answers at one of its leniences are read, and what each counts
at the others is kept in `rereadings/` of the workdir, a file for each point,
named by a hash of all that can change it; what is there is not read again. What
the numbers are is said in `analysis.reweighting`.
"""

import dataclasses
import hashlib
import inspect
import itertools
import math
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence

import ml_collections
import numpy as np

from cascades.drafters import pairing
from cascades.models import checkpoints
from cascades.sampler import sampler, scoring
from experiments import records
from experiments.analysis import estimates, reweighting
from experiments.analysis.runs import Run
from experiments.sweeps import plan, worker

# Fields of config.json that no config has.
_ADDED = ('curves', 'data', 'block_by_block')


@dataclasses.dataclass(frozen=True)
class Job:
  """Answers of a point that are read at other leniences.

  Attributes:
    point: Its name.
    curve: What decoded it.
    lenience: At which of the curve's leniences.
    leniences: The others.
    limit: Most that an answer may count.
    identity: Hash of all that can change what comes of it.
  """

  point: str
  curve: plan.Curve
  lenience: float
  leniences: tuple[float, ...]
  limit: float
  identity: str

  def path(self, workdir: pathlib.Path) -> pathlib.Path:
    """Where in a workdir it is kept."""
    name = f'{self.point}-from-{self.lenience:g}-{self.identity[:16]}'
    return workdir / 'rereadings' / f'{name}.jsonl.gz'

  def is_of(self, record: records.Record) -> bool:
    """Whether a record of its point is one of an answer that is read."""
    return record.lenience == self.lenience and record.failure is None


def config_of(run: Run) -> ml_collections.ConfigDict:
  """The config that a workdir was decoded with.

  Raises:
    ValueError: It was not kept, or it was decoded greedily.
  """
  if not run.config.get('curves'):
    raise ValueError(
      f'workdir: {run.path}/config.json does not say what was decoded; run'
      ' experiments.sweep with this workdir first.'
    )
  config = ml_collections.ConfigDict(
    {k: v for k, v in run.config.items() if k not in _ADDED}
  )
  if config.temperature == 0:
    raise ValueError(
      'temperature: at 0 an answer is the only one there is, and says nothing'
      ' of other leniences; decode at a temperature above 0.'
    )
  return config


def curves_of(
  run: Run, config: ml_collections.ConfigDict, methods: Sequence[str] = ()
) -> list[plan.Curve]:
  """The curves of a workdir that have leniences and decode in blocks.

  Args:
    run: What lies there.
    config: From `config_of`.
    methods: Those that are asked for; none for all.

  Raises:
    ValueError: A method was not decoded there, or there is no curve.
  """
  found = []
  for said in run.config['curves']:
    own = {k: v for k, v in said.items() if k not in ('method', 'leniences')}
    leniences = list(map(float, said['leniences']))
    curve = plan.Curve.of(config, said['method'], leniences, **own)
    if curve.leniences and curve.options.gamma and not curve.confidence:
      found.append(curve)
  known = list(dict.fromkeys(curve.method for curve in found))
  for name in methods:
    if name not in known:
      raise ValueError(
        f'method: {name} was not decoded at any lenience in {run.path}; there'
        f' are {", ".join(known) or "none"}.'
      )
  found = [c for c in found if not methods or c.method in methods]
  if not found:
    raise ValueError(
      f'workdir: no curve in {run.path} has a lenience; decode one that has.'
    )
  return found


def jobs(
  run: Run,
  curves: Sequence[plan.Curve],
  lenience: float | None = None,
  more: Sequence[float] = (),
  between: int = 0,
) -> list[Job]:
  """What is to be read.

  Args:
    run: What lies in a workdir.
    curves: Those that are asked for.
    lenience: From which answers are taken; None: from the one in the middle of
      each curve.
    more: Leniences beside those that were decoded.
    between: How many more between any two neighbours that were decoded.

  Raises:
    ValueError: A curve was not decoded at that lenience, or there is nothing to
      estimate.
  """
  found = []
  for curve in curves:
    at, others = _places(curve, lenience, more, between)
    if not others:
      continue
    points = {
      name: [r for r in lines if r.lenience == at and r.failure is None]
      for name, lines in run.lines.items()
      if lines and _is_of(lines[0], curve)
    }
    for task in dict.fromkeys(r.task for rows in points.values() for r in rows):
      own = {k: rows for k, rows in points.items() if _task(rows) == task}
      limit = estimates.limit(sum(map(len, own.values())))
      told = curve, at, others, limit
      found += [Job(name, *told, _identity(name, *told)) for name in own]
  if not found:
    raise ValueError(
      'leniences: no curve has a second one to estimate; give some with'
      ' --leniences.'
    )
  return found


def _task(rows: Sequence[records.Record]) -> str:
  """Of what task a point's records are; '' where all failed."""
  return rows[0].task if rows else ''


def _is_of(record: records.Record, curve: plan.Curve) -> bool:
  """Whether a record came of a curve."""
  options = curve.own
  gamma = options.pop('gamma')
  return (record.method, record.gamma, record.options) == (
    curve.method,
    gamma,
    tuple(options[name] for name in records.OPTIONS),
  )


def _places(
  curve: plan.Curve, lenience: float | None, more: Sequence[float], between: int
) -> tuple[float, tuple[float, ...]]:
  """Which lenience of a curve is read from, and at which others.

  Raises:
    ValueError: It was not decoded there.
  """
  decoded = sorted(curve.leniences)
  if lenience is None:
    lenience = decoded[len(decoded) // 2]
  elif lenience not in decoded:
    there = ', '.join(f'{value:g}' for value in decoded)
    raise ValueError(
      f'from: {curve.name} was not decoded at {lenience:g}; there are {there}.'
    )
  finite = [value for value in decoded if math.isfinite(value)]
  steps = [
    # With no more digits than people give them.
    [float(f'{x:.6g}') for x in np.linspace(low, high, between + 2)[1:-1]]
    for low, high in itertools.pairwise(finite)
  ]
  every = {*decoded, *more, *(value for step in steps for value in step)}
  return lenience, tuple(sorted(every - {lenience}))


def _identity(
  point: str,
  curve: plan.Curve,
  lenience: float,
  leniences: Sequence[float],
  limit: float,
) -> str:
  """A hash of all that can change what is read of a point."""
  code = ''.join(
    inspect.getsource(module)
    for module in (scoring, reweighting, sys.modules[__name__])
  )
  return records.digest(
    records.plain(
      {
        'point': point,
        'curve': curve.name,
        'leniences': [lenience, *leniences],
        'limit': limit,
        'code': hashlib.sha256(code.encode()).hexdigest(),
      }
    )
  )


class Reader:
  """The pair that a workdir was decoded with."""

  def __init__(self, run: Run, config: ml_collections.ConfigDict):
    """Loads it.

    Args:
      run: What lies in the workdir.
      config: From `config_of`.

    Raises:
      ValueError: It is absent, or has other weights by now.
    """
    dtype, mesh = config.get('dtype'), worker.make_mesh(config)
    self._config = config
    self._verifier = checkpoints.load_model(config.verifier, dtype, mesh)
    self._drafter = pairing.load_drafter(config.drafter, dtype, mesh)
    equipped = pairing.equip(
      self._verifier, self._drafter, **plan.drafting(config)
    )
    if not scoring.is_language_model(equipped):
      raise ValueError(
        f'drafter: {config.drafter} does not say of a given text how likely it'
        ' is; decode with a language model as drafter.'
      )
    for name, now in worker.weights(self._verifier, equipped).items():
      # An older run does not say all of them.
      if run.start.get(name, now) != now:
        raise ValueError(
          f'workdir: {run.path} was decoded with another {name} than'
          f' {config.get(name, config.verifier)} is now; run experiments.sweep'
          ' again, or give the old weights back.'
        )

  def read(
    self, run: Run, job: Job, on_answer: Callable[[], None]
  ) -> list[records.Rereading]:
    """What the answers of a point count at other leniences.

    Args:
      run: What lies in the workdir.
      job: Which answers, and where.
      on_answer: Is called as an answer is read.

    Raises:
      NoLawError: The curve has not one law for a text.
      ValueError: Traces are missing or damaged.
    """
    asked = records.read_examples(run.path)
    traces = records.scan_traces(run.path, job.point)
    found = [
      (record, trace)
      for record, trace in zip(run.lines[job.point], traces, strict=True)
      if job.is_of(record)
    ]
    # As few rows at a time as there may be, in batches of one size.
    batches = -(-len(found) // self._config.batch_size)
    decoder = sampler.Sampler.of(
      dataclasses.replace(
        job.curve.options,
        lenience=job.lenience,
        batch_size=-(-len(found) // batches),
      ),
      self._verifier,
      self._drafter,
      mesh=plan.mesh_of(self._config),
    )
    chat = self._config.get('chat', False)
    requests = [
      (decoder.encode(asked[r.task][r.id].prompt, chat), trace.tokens)
      for r, trace in found
    ]
    made = []
    for (record, trace), said in zip(
      found, scoring.across(decoder, requests, job.leniences), strict=True
    ):
      for weighted, counted in _counted(job, said, trace):
        made.append(
          records.Rereading(
            point=job.point,
            lenience=job.lenience,
            id=record.id,
            weighted=weighted,
            limit=job.limit,
            leniences=[job.lenience, *job.leniences],
            **{k: v.tolist() for k, v in counted._asdict().items()},
          )
        )
      on_answer()
    return made


def _counted(
  job: Job, said: scoring.Across, trace: records.Trace
) -> Iterator[tuple[str, reweighting.Counted]]:
  """What an answer counts, by what has a weight."""
  options, how = job.curve.options, (scoring.RATIOS, job.limit)
  # Elsewhere what becomes of a draft hangs on more than its own place.
  by_token = (
    options.verification == 'token'
    and options.drafts == 1
    and options.stop_below is None
  )
  gamma = options.gamma if by_token else None
  yield (
    reweighting.TOKEN,
    reweighting.per_token(said, *how, gamma=gamma),
  )
  if by_token:
    yield (
      reweighting.BLOCK,
      reweighting.per_block(said, trace.sources, *how),
    )


def missing(run: Run, wanted: Sequence[Job]) -> list[Job]:
  """The jobs whose files are not there, or are damaged."""
  left = []
  for job in wanted:
    try:
      records.read(job.path(run.path), records.Rereading)
    except (FileNotFoundError, ValueError):
      left.append(job)
  return left


def read_back(run: Run, wanted: Sequence[Job]) -> list[records.Rereading]:
  """What lies in the files of jobs that are done."""
  return [
    line
    for job in wanted
    for line in records.read(job.path(run.path), records.Rereading)
  ]
