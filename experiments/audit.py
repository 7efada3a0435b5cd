"""Proves, or disproves, that a method emits the law it declares.

Command: python -m experiments.audit --method=token_v3
Shows: every check with its largest error, how many tokens a block gives, and
a picture of the target; exit code 1 and the row that shows it if one fails.

A verification of your own, from whatever engine: put `verify(q_rows, p_rows,
drafts, rng) -> tokens` into a file, as
`cascades.contrib.engine_audits.engines` has it, and give it with
--function=my_engine.py:verify. It is compared with the rule --method ('speed'
at lenience 0 is plain speculative decoding), exactly where what it draws can be
gone through.

What an engine wrote down of its blocks, a line of JSON each as
`cascades.contrib.engine_audits.traces` has it: --trace=blocks.jsonl.

The loop is sampled by token and by block verification; --verification=all takes
all that the method can be verified by, and --cap=top:3 audits it with a cap.

A rule of your own: put `cascades.register(...)` into a file and give it with
--rules=my_rules.py. --method=all goes through every registered method.
"""

import json
import pathlib
import sys

from absl import app, flags

from experiments import cli

_METHOD = flags.DEFINE_string('method', None, "Key of METHODS, or 'all'.")
_LENIENCE = flags.DEFINE_list(
  'lenience', None, 'Leniences to look at; by default from strict to lenient.'
)
_RULES = flags.DEFINE_string(
  'rules', None, 'A Python file that registers methods of your own.'
)
_FUNCTION = flags.DEFINE_string(
  'function', None, "A verification of your own, 'my_engine.py:verify'."
)
_TRACE = flags.DEFINE_string(
  'trace', None, "An engine's blocks, as JSON lines, 'blocks.jsonl'."
)
_VERIFICATION = flags.DEFINE_list(
  'verification',
  ['token', 'block'],
  "By which the loop is sampled: names such as traversal, or 'all'.",
)
_CAP = flags.DEFINE_string(
  'cap', 'none', "Of the method: 'top:3', 'delta:0.1', or both."
)
_SAMPLES = flags.DEFINE_integer(
  'samples', 20_000, 'Sequences drawn at each sampled lenience.', lower_bound=1
)
_SEED = flags.DEFINE_integer('seed', 0, 'Of rows and samples.', lower_bound=0)
_WORKDIR = flags.DEFINE_string('workdir', 'runs/audit', 'Where results go.')


def _leniences() -> list[float] | None:
  if _LENIENCE.value is None:
    return None
  try:
    return sorted({float(x) for x in _LENIENCE.value})
  except ValueError as e:
    raise ValueError(f'lenience: {e}; give numbers such as 0,0.5.') from None


def _certify(leniences: list[float] | None) -> None:
  """Compares somebody's verification with a rule."""
  file, _, name = _FUNCTION.value.rpartition(':')
  if not pathlib.Path(file).is_file():
    raise ValueError(
      f'function: there is no file {file!r}; write my_engine.py:verify.'
    )
  verify = getattr(cli.load_config_module(file), name, None)
  if not callable(verify):
    raise ValueError(f'function: {file} has no function {name!r}.')
  from cascades.contrib.engine_audits import engines

  found = [
    engines.certify(verify, _METHOD.value, lenience, seed=_SEED.value)
    for lenience in leniences or [None]
  ]
  _tell(name, found)


def _certify_trace(leniences: list[float] | None) -> None:
  """Compares what an engine wrote down with a rule."""
  from cascades.contrib.engine_audits import traces

  found = [
    traces.certify(_TRACE.value, _METHOD.value, lenience)
    for lenience in leniences or [None]
  ]
  _tell(pathlib.Path(_TRACE.value).stem, found)


def _tell(name: str, found: list) -> None:
  """Writes certificates and says them; exit code 1 if one fails."""
  from experiments import records

  workdir = pathlib.Path(_WORKDIR.value)
  cli.make_folder(workdir)
  said = [one.to_dict() for one in found]
  text = json.dumps(said, indent=2, allow_nan=False) + '\n'
  records.write_text(workdir / f'{name}.json', text)
  print('\n'.join(map(str, found)))
  if not all(one.passed for one in found):
    sys.exit(1)


def _keep(workdir: pathlib.Path, name: str, found) -> None:
  """Writes an audit, and a picture of its examples if there are any."""
  from experiments import records
  from experiments.reports import targets

  text = json.dumps(found.to_dict(), indent=2, allow_nan=False) + '\n'
  records.write_text(workdir / f'{name}.json', text)
  if found.examples is not None:
    path = workdir / f'{name}.png'
    targets.draw(path, name, found.leniences, found.examples)


def main() -> None:
  """Runs the command."""
  if _METHOD.value is None:
    raise app.UsageError("--method: name a method, or 'all'.")
  leniences = _leniences()
  if _FUNCTION.value is not None:
    _certify(leniences)
    return
  if _TRACE.value is not None:
    _certify_trace(leniences)
    return
  if _RULES.value is not None and not pathlib.Path(_RULES.value).is_file():
    raise ValueError(f'rules: there is no file {_RULES.value}.')
  import jax

  from cascades import methods, verification
  from cascades.proof import audit

  if _RULES.value is not None:
    cli.load_config_module(_RULES.value)
  if _METHOD.value == 'all':
    chosen = list(methods.METHODS.available())
  else:
    chosen = [methods.get_method(_METHOD.value).name]
  kinds = _VERIFICATION.value
  if kinds == ['all']:
    # What fits into the blocks of an audit.
    kinds = [
      kind.shortest or name
      for name, kind in verification.VERIFICATIONS.available().items()
    ]
  workdir = pathlib.Path(_WORKDIR.value)
  cli.make_folder(workdir)
  bar = cli.progress(len(chosen), 'auditing')
  failed = []
  for name in chosen:
    bar.set_description(name, refresh=False)
    found = audit.audit(
      name,
      leniences,
      samples=_SAMPLES.value,
      seed=_SEED.value,
      verifications=kinds,
      cap=_CAP.value,
    )
    bar.write(str(found) + '\n')
    _keep(workdir, name, found)
    if not found.passed:
      failed.append(name)
    # A process can map only so much memory, and each loop takes a lot of it.
    jax.clear_caches()
    bar.update()
  bar.close()
  print(f'{len(chosen) - len(failed)} of {len(chosen)} passed; see {workdir}.')
  if failed:
    print(f'FAILED: {", ".join(failed)}', file=sys.stderr)
    sys.exit(1)


if __name__ == '__main__':
  cli.run(main)
