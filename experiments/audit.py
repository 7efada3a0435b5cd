"""Tests that a method emits the law that it declares.

Command: python -m experiments.audit --method=token_v3
Shows: every check with its largest error. If a check fails: its counterexample,
and exit code 1.

To audit the verification of another engine, put `verify(q_probs, p_probs,
drafts, rng) -> tokens` (see `cascades.contrib.engine_audits.engines`) into a
file, and give --function=my_engine.py:verify. The function is compared with the
law of --method ('speed' at lenience 0 is speculative decoding): exactly if its
random draws can be enumerated, else by samples.

To audit blocks or answers that an engine recorded, one JSON object per line
(see `cascades.contrib.engine_audits.traces`), give --trace=blocks.jsonl; for
answers also --verifier and --drafter, unless w is in the trace.

To find where greedy answers of an engine first differ from ours (see
`experiments.first_difference`), give --greedy=answers.jsonl --verifier=MODEL.

The decoding loop is sampled with token and block verification, or those of
--verification=traversal,look_ahead:2.
To audit your own rule, put `cascades.register(...)` into a file and give
--import=my_rules.py. --method=all audits every registered method.
"""

import functools
import json
import pathlib
import sys
from typing import Any

from absl import app, flags

from cascades.arguments import options_of
from cascades.config import DecodingConfig
from experiments import cli
from experiments.sweeps import fields

_FLAGS = flags.FLAGS
for _name, _help in {
  'method': "Name of a method, or 'all'.",
  'function': 'Verification function to audit: my_engine.py:verify.',
  'trace': 'JSON Lines file of blocks or answers of an engine.',
  'greedy': 'File of greedy answers of an engine.',
  'verifier': 'The verifier of answers.',
  'drafter': 'The drafter of answers.',
}.items():
  flags.DEFINE_string(_name, None, _help)
flags.DEFINE_string('workdir', 'runs/audit', 'Folder of results.')
flags.DEFINE_list('lenience', None, 'Leniences to sample at; by default two.')
flags.DEFINE_list(
  'verification',
  ['token', 'block'],
  'Verifications of the sampled loop, such as traversal; the first is that of'
  ' the blocks of a trace.',
)
flags.DEFINE_integer(
  'samples',
  20_000,
  'Sequences to draw where not enumerated.',
  lower_bound=1,
)
# Of the engine that wrote the answers.
_OPTIONS = 'temperature top_k top_p gate cache_length batch_size'.split()
_DECLARED = options_of(DecodingConfig) | options_of(fields.SweepConfig)
cli.define_options(
  {x: _DECLARED[x] for x in (*_OPTIONS, 'dtype', 'chat', 'seed')}
)


def _certify(leniences: list[float] | None) -> None:
  """Compares a function of the user's, or what was recorded, with a rule."""
  from cascades.contrib.engine_audits import engines, traces
  from cascades.sampler import sampler

  def check_answers(method: str, lenience: float | None) -> Any:
    if _FLAGS.verifier is None:
      return traces.check_answers(_FLAGS.trace, None)
    options = {name: _FLAGS[name].value for name in _OPTIONS}
    config = DecodingConfig(method=method, lenience=lenience, **options)
    models = _FLAGS.verifier, _FLAGS.drafter
    decoder = sampler.Sampler(*models, config=config, dtype=_FLAGS.dtype)
    return traces.check_answers(_FLAGS.trace, decoder)

  if _FLAGS.trace is not None:
    if _FLAGS.function:
      raise ValueError('trace: cannot be combined with function; give one.')
    name = pathlib.Path(_FLAGS.trace).stem
    certify = functools.partial(
      traces.certify, _FLAGS.trace, verification=_FLAGS.verification[0]
    )
    if traces.has_answers(_FLAGS.trace):
      certify = check_answers
  else:
    file, _, name = _FLAGS.function.rpartition(':')
    verify = getattr(cli.load_config_module(file), name, None)
    if not callable(verify):
      raise ValueError(f'function: {file} has no function {name!r}; define it.')
    options = dict(seed=_FLAGS.seed, samples=_FLAGS.samples)
    certify = functools.partial(engines.certify, verify, **options)
  cli.say(f'auditing {name}')
  certificates = [certify(_FLAGS.method, x) for x in leniences or [None]]
  _write(name, [certificate.to_dict() for certificate in certificates])
  print('\n'.join(map(str, certificates)))
  if not all(certificate.passed for certificate in certificates):
    sys.exit(1)


def _compare() -> None:
  """Compares greedy answers of an engine with a verifier's."""
  from experiments import first_difference

  if _FLAGS.verifier is None:
    raise app.UsageError('verifier: no model is given; give that of --greedy.')
  options = _FLAGS.verifier, _FLAGS.dtype or 'float32', _FLAGS.chat
  result = first_difference.compare(_FLAGS.greedy, *options)
  _write(pathlib.Path(_FLAGS.greedy).stem, result)
  print(first_difference.describe(result))
  if result['verdict'] in ('other prompt', 'error'):
    sys.exit(1)


def _write(name: str, result: Any) -> None:
  """Writes a result to the workdir, which is made if needed."""
  from experiments import records

  workdir = pathlib.Path(_FLAGS.workdir)
  cli.make_folder(workdir)
  text = json.dumps(result, indent=2, allow_nan=False) + '\n'
  records.write_text(workdir / f'{name}.json', text)


def main() -> None:
  """Runs the command."""
  if _FLAGS.greedy is not None:
    _compare()
    return
  if _FLAGS.method is None:
    raise app.UsageError("method: no name is given; give one, or 'all'.")
  leniences = _FLAGS.lenience
  try:
    leniences = leniences and sorted({float(x) for x in leniences})
  except ValueError as e:
    raise ValueError(f'lenience: {e}; give numbers, such as 0,0.5.') from None
  if _FLAGS.function is not None or _FLAGS.trace is not None:
    _certify(leniences)
    return
  import jax

  from cascades import methods
  from cascades.proof import audit

  if _FLAGS.method == 'all':
    names = list(methods.METHODS)
  else:
    names = [methods.get_method(_FLAGS.method).name]
  cli.make_folder(pathlib.Path(_FLAGS.workdir))
  bar = cli.progress(len(names), 'auditing')
  failed = []
  for name in names:
    bar.set_description(name, refresh=False)
    result = audit.audit(
      name,
      leniences,
      samples=_FLAGS.samples,
      seed=_FLAGS.seed,
      verifications=_FLAGS.verification,
    )
    bar.write(str(result) + '\n')
    _write(name, result.to_dict())
    if not result.passed:
      failed.append(name)
    # Compiled loops take mapped memory, which is limited per process.
    jax.clear_caches()
    bar.update()
  bar.close()
  print(
    f'{len(names) - len(failed)} of {len(names)} passed; see {_FLAGS.workdir}.'
  )
  if failed:
    print(f'FAILED: {", ".join(failed)}', file=sys.stderr)
    sys.exit(1)


if __name__ == '__main__':
  cli.run(main)
