"""Rebuilds the page of a finished run from the files in its workdir.

Command: python -m experiments.report --workdir=runs/sweep
Shows: the path of the page, `report/index.html` under the workdir. Needs no
accelerator and loads no model.
"""

from absl import app, flags

from experiments import cli

_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of a finished run.')


def main() -> None:
  if _WORKDIR.value is None:
    raise app.UsageError('--workdir: name the folder of a finished run.')
  # After the flags, so that a mistyped one is reported at once.
  from cascades.report import write_report

  print(write_report(_WORKDIR.value))


if __name__ == '__main__':
  cli.run(main)
