"""Accepts this source for the results version, if it gives the same results.

Command: python -m experiments.accept
         python -m experiments.accept --change='Counts leave out the prompt.'
Writes: experiments/records/results_version.json; of a change also
        tests/data/fixed_results.json

It runs the test of fixed results. With `--change` the results may be others:
what they are now is what the next version stands for, and the line says why.
"""

import dataclasses
import json
import subprocess
import sys

from absl import flags

from experiments import cli, records
from experiments.records import versions

_CHANGE = flags.DEFINE_string(
  'change',
  None,
  'What changed, in a line: begins the next results version with it.',
)

_TESTS = versions.ROOT / 'tests'
_WRITE = 'import conftest, fixed_results; fixed_results.write()'


def main() -> None:
  if not _TESTS.is_dir():
    raise ValueError(
      f'accept: there is no {_TESTS}; run it in a checkout of the project.'
    )
  before = versions.accepted()
  version, changelog = before.version, before.changelog
  if _CHANGE.value is not None:
    line = ' '.join(_CHANGE.value.split())
    if not line:
      raise ValueError('change: the line is empty; say what changed.')
    version, changelog = version + 1, changelog | {str(version + 1): line}
    print('decoding the fixed results anew; it takes some minutes')
    _run('-c', _WRITE, cwd=_TESTS)
  source = versions.source_hash()
  test = _TESTS / 'fixed_results_test.py'
  if _run('-m', 'pytest', str(test), '-m', '', '-q', cwd=versions.ROOT):
    raise ValueError(
      'accept: the fixed results are others, as shown above; mend the code, or'
      ' begin a version with --change="what changed".'
    )
  if source != versions.source_hash():
    raise ValueError('accept: the source changed meanwhile; run it once more.')
  after = versions.Accepted(version, changelog, source)
  text = json.dumps(dataclasses.asdict(after), indent=2, ensure_ascii=False)
  records.write_text(versions.FILE, text + '\n')
  print(f'results version {version} is of source {source[:12]} now.')


def _run(*arguments: str, cwd) -> int:
  """Runs this Python; its exit status."""
  return subprocess.run([sys.executable, *arguments], cwd=cwd).returncode


if __name__ == '__main__':
  cli.run(main)
