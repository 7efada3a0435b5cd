"""Certifies that a lossy engine answers as well as a lossless one.

Command: python -m experiments.certify --base=strict --lossy=lossy --margin=.02
Shows: a sentence and a table: the differences on equal examples with their
intervals (95 %, wider for several engines), and a verdict on each engine. The
workdir receives a page, with lengths, speed-ups and acceptance too, and JSON.
No model is loaded.

An engine is a folder of `lm_eval --log_samples`; a workdir of a sweep with a
point, runs/sweep:token_v3@0.5; or a JSONL, CSV or Parquet file of rows with
`id` and `score`, or `text` and `reference` for --metric, and, if known,
`tokens`, `seconds`, `accepted` and `drafted`. The exit code, of the mean over
tasks, is 0 if an engine is certified, 3 if all are worse, and 4 otherwise.
"""

import json
import pathlib
import sys

from absl import app, flags

from cascades import files
from experiments import cli

_FLAGS = flags.FLAGS
flags.DEFINE_string('base', None, 'Answers of the lossless engine.')
flags.DEFINE_multi_string('lossy', [], 'Answers of a lossy engine, or several.')
flags.DEFINE_float('margin', None, 'Largest loss, in points of the metric.')
flags.DEFINE_string('metric', None, 'Metric; by default the first.')
flags.DEFINE_string('filter', None, 'Filter of the harness, if it has several.')
flags.DEFINE_bool('order', False, 'Tests --lossy in turn until one fails.')
flags.DEFINE_string('workdir', 'runs/certify', 'Folder of results.')


def main() -> None:
  """Runs the command."""
  names = [_FLAGS.base or '', *_FLAGS.lossy]
  paths = {pathlib.Path(x).absolute() for x in filter(None, names)}
  if len(paths) < max(2, len(names)) or _FLAGS.margin is None:
    raise app.UsageError(
      'base: give the answers of different engines and a margin, such as'
      ' --base=strict --lossy=lossy --margin=.02.'
    )
  from experiments import records
  from experiments.analysis import certificates, engine_answers
  from experiments.reports.page import TEMPLATES

  base = engine_answers.read('base', _FLAGS.base, _FLAGS.metric)
  engines, notices = [], []
  for name in _FLAGS.lossy:
    engine = engine_answers.read('lossy', name, _FLAGS.metric)
    paired = engine_answers.pair(base, engine, _FLAGS.metric, _FLAGS.filter)
    engines.append((engine, paired[0]))
    notices += paired[1]
  frame = certificates.compare(base.name, engines, _FLAGS.margin, _FLAGS.order)
  text = TEMPLATES.overlay(autoescape=False).get_template('certificate.txt')
  rows = frame.to_dict('records')
  sentences = [' '.join(text.render(x).split()) for x in rows]
  content = dict(sentences=sentences, notices=notices, rows=files.plain(rows))
  folder = pathlib.Path(_FLAGS.workdir)
  cli.make_folder(folder)
  records.write_text(folder / 'certificate.json', json.dumps(content, indent=2))
  page = TEMPLATES.get_template('certificate.html')
  content |= dict(frame=frame, in_order=_FLAGS.order)
  records.write_text(folder / 'index.html', page.render(content))
  columns = 'variant task n needed lost gained difference verdict'.split()
  printed = frame[columns].replace({'needed': {0: '-'}})
  table = printed.to_string(index=False)
  for text in (*notices, *sentences, table, f'{folder / "index.html"}'):
    print(files.printable(text))
  verdicts = {*frame.verdict[~frame.is_part]}
  if certificates.NOT_WORSE not in verdicts:
    sys.exit(3 if verdicts == {certificates.WORSE} else 4)


if __name__ == '__main__':
  cli.run(main)
