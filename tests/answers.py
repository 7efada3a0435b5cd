"""Records, traces and unit costs of answers that are made up."""

import math

from experiments import records
from experiments.records import unit_costs

COSTS = unit_costs.Costs(
  verifier_token_s=0.010, drafter_token_s=0.001, verify_s={2: 0.012, 4: 0.013}
)


def measured(*costs) -> unit_costs.CostMeasurements:
  """Makes unit costs that were measured in turn."""
  times = [unit_costs.CostMeasurement(low=x) for x in costs]
  return unit_costs.CostMeasurements(times=times)


def make_record(sources='drb', **changes) -> records.Record:
  """Makes a record of blocks of two: (d)rafts, (r)esiduals and (b)onuses."""
  blocks = sources.count('r') + sources.count('b')
  accepted, rejected = sources.count('d'), sources.count('r')
  fields = dict(task='sums', method='token_v3', lenience=0.5, gamma=2, drafts=1)
  fields |= dict(verification='token', gate='raw', bonus_from='target')
  fields |= dict(draft='sample', temperature=1.0, id='0', failure=None)
  fields |= dict(text='2', quality=1.0)
  fields |= dict(scores={'exact': 1.0}, emitted=len(sources), ended=True)
  fields |= dict(accepted=accepted, examined=accepted + rejected)
  fields |= dict(deferred=rejected, deferrals=None, last_deferral=None)
  fields |= dict(residual=rejected, bonus=sources.count('b'), wall_s=0.25)
  fields |= dict(drafted=2 * blocks, drafter_calls=3 * blocks)
  fields |= dict(verifier_calls=blocks, verifier_tokens=3 * blocks)
  return records.Record(**fields | changes)


def make_alone(method, emitted=3, **changes) -> records.Record:
  """Makes a record of one model alone: `verifier_only` or `drafter_only`."""
  drafts = method == 'drafter_only'
  fields = dict(method=method, lenience=math.nan, gamma=0)
  fields |= dict(drafted=0, examined=0, accepted=0, deferred=None)
  fields |= dict(drafter_calls=emitted if drafts else 0)
  read = 0 if drafts else emitted
  fields |= dict(verifier_calls=read, verifier_tokens=read)
  return make_record('b' * emitted, **fields | changes)


def make_trace(sources='drb', **changes) -> records.Trace:
  """Makes a trace; the sources are letters, as in `make_record`."""
  n = len(sources)
  fields = dict(id='0', tokens=[*range(n)], deferred=[0] * n)
  fields |= dict(token_strings=[f' {i}' for i in range(n)], logprobs=[0.0] * n)
  fields |= dict(sources=[*map('pdrb'.index, sources)], rejected=[None] * n)
  fields |= dict.fromkeys(['verifier_logprobs', 'target_logprobs'], [0.0] * n)
  fields |= dict(drafter_logprobs=[None] * n, law_given='text')
  return records.Trace(**fields | changes)


def make_failure(record, reason) -> tuple[records.Record, records.Trace]:
  """Makes the record and the trace of an example that has no answer."""
  names = (
    'task method lenience gamma verification gate bonus_from drafts draft'
    ' temperature id'
  )
  told = {name: getattr(record, name) for name in names.split()}
  return records.failed_example(reason, **told)
