"""Graded answers of engines, stored as they are until `pair` reads a metric."""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cascades import arguments, files
from experiments import records
from experiments.analysis import comparisons
from experiments.tasks import answer_metrics, data_files, quality_metric
from experiments.tasks.answer_metrics import sacrebleu_scorer

Rows = Iterator[dict[str, Any]]
# The length and time of an answer, and its tokens of the drafter.
SIZES = ('characters', 'tokens', 'seconds', 'accepted', 'drafted')
_KEY = ['task', 'filter', 'metric']
# By these the runs of a harness may differ.
_FACTS = ('document', 'prompt', 'number of worked examples')
_CORPUS_METRICS = ('bleu', 'chrf')


class Engine(NamedTuple):
  """The answers of an engine, by (task, filter, metric) and id."""

  name: str
  groups: dict[tuple[str, str, str], pd.DataFrame]


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
  """Answers of a base and of a lossy engine to the same examples of a task.

  Scores are shares of the best score, `scale`, and sizes are nan if unknown:
  both are [2, n]. A corpus score is `corpus` of the sum of [2, n, summands].
  """

  task: str
  metric: str
  scale: float
  scores: np.ndarray
  sizes: dict[str, np.ndarray]
  sums: np.ndarray | None = None
  corpus: Callable[[np.ndarray], float] | None = None

  def __len__(self) -> int:
    return self.scores.shape[1]


def read(option: str, name: str, metric: str | None = None) -> Engine:
  """Reads the answers of an engine.

  The name is a folder or file of samples, a workdir (with a point after a
  colon), or a file of rows, whose texts are scored by `metric` if any.
  """
  path, point = pathlib.Path(name), ''
  if not path.exists():
    parent, _, point = name.rpartition(':')
    path = pathlib.Path(parent or name)
  if path.is_file() and not path.name.startswith('samples_'):
    rows = _table_rows(option, path, metric)
  elif (path / 'records').is_dir():
    rows = _workdir_rows(option, path, point)
  elif path.exists():
    rows = _sample_rows(option, path)
  else:
    raise ValueError(f'{option}: there is no {path}; give a file or a folder.')
  frame = pd.DataFrame(rows, columns=[*_KEY, 'id', 'value', *_FACTS, *SIZES])
  frame = frame.fillna(dict.fromkeys(_KEY, ''))
  frame[[*SIZES]] = frame[[*SIZES]].apply(pd.to_numeric, errors='coerce')
  if frame.empty:
    raise ValueError(f'{option}: {name} has no answers; give those of a run.')
  if (twice := frame.duplicated([*_KEY, 'id'])).any():
    wrong = frame.id[twice].iloc[0]
    raise ValueError(f'{option}: {name} has id {wrong!r} twice; give it once.')
  groups = frame.groupby(_KEY, sort=False)
  return Engine(name, {k: x.set_index('id') for k, x in groups})


def _workdir_rows(option: str, path: pathlib.Path, point: str) -> Rows:
  """Reads the records of a point."""
  decoded = records.read_all(path)
  names = sorted({*map(comparisons.point_name, decoded)})
  matching = comparisons.matching(names, point) if point else names
  if len(matching) != 1:
    text = f'{path} must be followed by a colon and one of its points'
    raise ValueError(f'{option}: {text} {", ".join(names)}.')
  examples = records.read_examples(path)
  for r in decoded:
    if r.failure is None and comparisons.point_name(r) == matching[0]:
      row = dict(task=r.task, id=r.id, characters=len(r.text))
      row |= dict(tokens=r.emitted, accepted=r.accepted, drafted=r.drafted)
      values = {'quality': r.quality} | r.scores
      if (metric := quality_metric(r.task)) and metric.corpus:
        values = {metric.name: [examples[r.task][r.id].reference, r.text]}
      yield from (row | dict(metric=k, value=x) for k, x in values.items())


def _sample_rows(option: str, path: pathlib.Path) -> Rows:
  """Reads the newest samples of each task that the harness logged."""
  newest = {}
  for file in [path] if path.is_file() else path.rglob('samples_*.jsonl'):
    task, _, date = file.stem.removeprefix('samples_').rpartition('_')
    newest[task] = max(newest.get(task, ('', file)), (date, file))
  if len({file.parent for _, file in newest.values()}) > 1:
    raise ValueError(f'{option}: {path} has several models; give one folder.')
  for task, (date, file) in sorted(newest.items()):
    results, run = file.with_name(f'results_{date}.json'), {}
    if results.is_file():
      run = files.read_fields(results, option, 'delete it')
    shots = run.get('n-shot', {}).get(task)
    is_best_high = run.get('higher_is_better', {}).get(task, {})
    data = data_files.DataFile(option, str(file))
    for place, row in data.rows():
      with data.errors_at(place):
        fields = dict(task=task, id=data_files.get_text(row, 'doc_id'))
        metrics = data_files.get_texts(row, 'metrics')
      text = row.get('resps')
      for _ in range(2):
        text = text[0] if isinstance(text, list) and text else None
      fields['characters'] = len(text) if isinstance(text, str) else None
      facts = row.get('doc_hash'), row.get('prompt_hash'), shots
      fields |= dict(zip(_FACTS, facts, strict=True))
      fields['filter'] = str(row.get('filter'))
      for metric in metrics:
        # Lower values of others are better.
        if is_best_high.get(metric) is not False:
          yield fields | dict(metric=metric, value=row.get(metric))


def _table_rows(option: str, path: pathlib.Path, metric: str | None) -> Rows:
  """Reads a table with a row for each answer."""
  data = data_files.DataFile(option, str(path))
  for place, row in data.rows():
    with data.errors_at(place):
      fields: dict[str, Any] = dict(id=data_files.get_text(row, 'id'))
      fields['metric'], value = metric or 'score', row.get('score')
      if metric:
        is_list = isinstance(row.get('reference'), list)
        get = data_files.get_texts if is_list else data_files.get_text
        value = [get(row, 'reference'), data_files.get_text(row, 'text')]
    fields |= {x: data_files.as_text(row.get(x)) for x in SIZES[1:]}
    if isinstance(row.get('text'), str):
      fields['characters'] = len(row['text'])
    if '.csv' in path.suffixes and not metric:
      with contextlib.suppress(ValueError, TypeError):
        value = float(value)
    yield fields | {'value': value}


def pair(
  base: Engine, lossy: Engine, metric: str | None, answer_filter: str | None
) -> tuple[list[Pairs], list[str]]:
  """Pairs the answers of two engines by task and id.

  Returns the pairs of each task, and differences of the runs in sentences.
  """
  output, notices = [], []
  for task in dict.fromkeys(x[0] for x in base.groups):
    keys = [x for x in base.groups if x[0] == task]
    names = dict.fromkeys(x[1] for x in keys)
    if answer_filter is None and len(names) > 1:
      text = f'{task} has {" and ".join(names)}'
      raise ValueError(f'filter: {text}; choose one by --filter.')
    # The first metric is the main one.
    key = task, answer_filter or keys[0][1], metric or keys[0][2]
    for engine in (base, lossy):
      if key not in engine.groups:
        name, *names = (' '.join(x).strip() for x in (key, *engine.groups))
        text = f'{engine.name} has no {name}, only {", ".join(names)}'
        raise ValueError(f'metric: {text}; choose another metric or filter.')
    first, second = base.groups[key], lossy.groups[key]
    ids = first.index.intersection(second.index)
    text = (
      f'{lossy.name} shares {len(ids)} of {len(first)} ids with {base.name}'
    )
    if len(ids) < 2:
      text += f', whose first is {first.index[0]!r} and not {second.index[0]!r}'
      raise ValueError(f'lossy: {text}; give two or more equal ids.')
    if len(ids) < max(len(first), len(second)):
      notices.append(f'{text}; the other answers are left out.')
    first, second = first.loc[ids], second.loc[ids]
    for fact in _FACTS:
      x, y = first[fact], second[fact]
      differing = ids[x.notna() & y.notna() & (x != y)]
      text = f'{lossy.name} has another {fact} than {base.name} at'
      text += f' {len(differing)} ids, such as {[*differing, ""][0]!r}.'
      if len(differing) and fact == 'document':
        raise ValueError(f'lossy: {text}')
      notices += [text] * (len(differing) > 0)
    output.append(_graded((base, lossy), (first, second), key))
  return output, notices


# Most answers of engines are equal, and so are resamples.
@functools.lru_cache(maxsize=2**16)
def _counts(metric: str, text: str, references: tuple[str, ...]) -> list[int]:
  scorer, streams = sacrebleu_scorer(metric), [[x] for x in references]
  return scorer._extract_corpus_statistics([text], streams)[0]


@functools.lru_cache(maxsize=2**16)
def _corpus_score(metric: str, counts: tuple[float, ...]) -> float:
  scorer = sacrebleu_scorer(metric)
  return scorer._compute_score_from_stats([*counts]).score / 100


def _graded(engines: Any, frames: Any, key: tuple[str, str, str]) -> Pairs:
  """Grades the answers of both engines."""
  task, _, metric = key
  sizes = {x: np.stack([f[x].to_numpy(float) for f in frames]) for x in SIZES}
  is_text = all(isinstance(x, list) for frame in frames for x in frame.value)
  if is_text and metric in _CORPUS_METRICS:
    sums = []
    for references, texts in (zip(*x.value, strict=True) for x in frames):
      references = map(answer_metrics.accepted_answers, references)
      sums.append([*map(functools.partial(_counts, metric), texts, references)])

    def corpus(totals: np.ndarray) -> float:
      return _corpus_score(metric, tuple(totals.tolist()))

    sums = np.array(sums, float)
    scores = np.apply_along_axis(corpus, -1, sums)
    return Pairs(task, metric, 100.0, scores, sizes, sums, corpus)
  grade = answer_metrics.find(metric).score if is_text else None
  scores = []
  for engine, frame in zip(engines, frames, strict=True):
    for id, value in frame.value.items():
      if grade:
        value = next(iter(grade(*value[::-1]).values()))
      is_number = isinstance(value, int | float) and 0 <= value <= 100
      if isinstance(value, bool) or not is_number:
        text = f'{engine.name} has {arguments.quote(value)} at id {id!r}'
        raise ValueError(f'{metric}: {text}; give numbers to 1, or to 100.')
      scores.append(value)
  scores = np.reshape(scores, (2, -1))
  scale = 100.0 if scores.max() > 1 else 1.0
  return Pairs(task, metric, scale, scores / scale, sizes)
