"""Estimates a sweep's other leniences from the answers at one of each curve.

Command: python -m experiments.reweight --workdir=runs/quickstart
Shows: a progress bar, and a row for each lenience: what the answers that were
decoded at another say of its quality and its rejections, beside what was
decoded there, or why they say nothing; and how often the two agree.

Both models read the answers once more, all leniences in one go. What is read is
kept in the workdir, and the same command goes on where it was stopped; then
`estimates.csv` has all numbers, and experiments.report shows them on its page.
What weights and intervals are, `experiments/analysis/reweighting.py` and
`estimates.py` say.
"""

import math

from absl import app, flags

from experiments import cli

_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of a finished run.')
_METHODS = flags.DEFINE_list(
  'method', [], 'Methods that are looked at; by default all.'
)
_FROM = flags.DEFINE_float(
  'from',
  None,
  'Lenience whose answers are read; by default the middle one that was decoded'
  ' of each curve.',
)
_LENIENCES = flags.DEFINE_list(
  'leniences', [], 'Leniences to estimate beside those that were decoded.'
)
_BETWEEN = flags.DEFINE_integer(
  'between',
  0,
  'How many to estimate between any two neighbours that were decoded.',
  0,
)


def main() -> None:
  if not _WORKDIR.value:
    raise app.UsageError('--workdir: name the folder of a finished run.')
  more = [_number(text) for text in _LENIENCES.value]
  # After the flags, so that a mistyped one is reported at once.
  from experiments import records
  from experiments.analysis import estimates, runs

  run = runs.read(_WORKDIR.value)
  # It brings JAX.
  from experiments.sweeps import rereading, workdirs

  config = rereading.config_of(run)
  curves = rereading.curves_of(run, config, _METHODS.value)
  jobs = rereading.jobs(run, curves, _FROM.value, more, _BETWEEN.value)
  with workdirs.Workdir(run.path).held():
    refused = _read(run, config, rereading.missing(run, jobs))
    done = [job for job in jobs if job.curve.name not in refused]
    found = estimates.frame(run, rereading.read_back(run, done))
    text = found.to_csv(index=False)
    records.write_text(run.path / 'estimates.csv', text)
  if len(found):
    print(_table(found))
  for name, reason in refused.items():
    print(f'{name}: {reason}')
  print(f'\n{estimates.sentence(found)}')
  print(f'All numbers: {run.path / "estimates.csv"}')
  print(f'On the page: python -m experiments.report --workdir={run.path}')


def _number(text: str) -> float:
  """A lenience of the command line.

  Raises:
    ValueError: It is no number.
  """
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if math.isnan(value):
    raise ValueError(f'leniences: {text!r} is no number; give some as 0.1,0.5.')
  return value


def _read(run, config, missing) -> dict[str, str]:
  """Reads what is not there yet.

  Returns:
    Curves whose texts have no one law, and why.
  """
  from cascades.sampler import scoring
  from experiments import records
  from experiments.sweeps import rereading

  refused: dict[str, str] = {}
  if not missing:
    return refused
  answers = sum(
    job.is_of(record) for job in missing for record in run.lines[job.point]
  )
  bar = cli.progress(0, 'loading the models')
  try:
    reader = rereading.Reader(run, config)
    bar.reset(total=answers)
    bar.set_description('reading answers once more')
    for job in missing:
      try:
        read = reader.read(run, job, bar.update)
      except scoring.NoLawError as error:
        refused[job.curve.name] = str(error)
        continue
      records.write(job.path(run.path), read)
  finally:
    bar.close()
  return refused


def _table(found) -> str:
  """What people see of the estimates, by the weights per token."""
  from experiments.analysis import reweighting

  shown = found[found.weighted == reweighting.TOKEN]

  def cell(name, row):
    value, low, high = (row[f'{name}{end}'] for end in ('', '_low', '_high'))
    if math.isnan(value):
      return '-'
    return f'{value:.3f} ({low:.3f} to {high:.3f})'

  rows = [
    {
      'task': row['task'],
      'method': row['variant'],
      'from': f'{row["decoded_at"]:g}',
      'lenience': f'{row["lenience"]:g}',
      'size': f'{row["effective"]:.0f}',
      'unseen': f'{row["hidden"]:.3f}',
      'quality': cell('quality', row),
      'decoded': f'{row["decoded_quality"]:.3f}',
      'rejected': cell('rejection_rate', row),
      'decoded ': f'{row["decoded_rejection_rate"]:.3f}',
      'refused': row['refused'],
    }
    for row in shown.to_dict('records')
  ]
  import pandas as pd

  text = pd.DataFrame(rows).to_string(index=False)
  return text.replace(' nan', '   -')


if __name__ == '__main__':
  cli.run(main)
