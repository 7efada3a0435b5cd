"""Accepts this source for the results version, if it gives the same results.

Command: python -m experiments.accept
         python -m experiments.accept --change='Counts leave out the prompt.'
Writes: experiments/records/results_version.json; with --change also
        tests/data/fixed_results.json

The test of fixed results must pass. With `--change` the results of this source
become those of the next version, and the line says why they differ.
"""

import dataclasses
import json
import pathlib
import subprocess
import sys

from absl import flags

from experiments import cli, records
from experiments.records import versions

_CHANGE = flags.DEFINE_string(
  'change',
  None,
  'Reason for changed results, in one line; begins the next results version.',
)

_TESTS = versions.ROOT / 'tests'
_WRITE = 'import conftest, fixed_results; fixed_results.write()'


def main() -> None:
  """Runs the command."""
  if not _TESTS.is_dir():
    raise ValueError(
      f'accept: {_TESTS} is missing; run the command in a project checkout.'
    )
  accepted = versions.read_accepted()
  version, changelog = accepted.version, accepted.changelog
  saved_results = versions.RESULTS.read_bytes()
  if _CHANGE.value is not None:
    line = ' '.join(_CHANGE.value.split())
    if not line:
      raise ValueError('change: the text is empty; say why results change.')
    version, changelog = version + 1, changelog | {str(version + 1): line}
  source = versions.source_hash()
  try:
    if _CHANGE.value is not None:
      print('Decoding the fixed results of the next version takes minutes.')
      _run('-c', _WRITE, cwd=_TESTS)
    test = str(_TESTS / 'fixed_results_test.py')
    options = ['-m', 'pytest', test, '-m', '', '-q']
    _run(*options, cwd=versions.ROOT)
    if source != versions.source_hash():
      raise ValueError('accept: the source changed during the test; try again.')
  except BaseException:
    # Results must be those of the version.
    versions.RESULTS.write_bytes(saved_results)
    raise
  after = versions.Accepted(version, changelog, source, versions.results_hash())
  text = json.dumps(dataclasses.asdict(after), indent=2, ensure_ascii=False)
  records.write_text(versions.FILE, text + '\n')
  print(f'Results version {version} now belongs to source {source[:12]}.')


def _run(*arguments: str, cwd: pathlib.Path) -> None:
  """Runs this Python with arguments."""
  if subprocess.run([sys.executable, *arguments], cwd=cwd).returncode:
    raise ValueError(
      'accept: the results differ from those of the version, as shown above;'
      ' correct the code, or begin a version with --change="what changed".'
    )


if __name__ == '__main__':
  cli.run(main)
