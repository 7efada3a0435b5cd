"""Tasks: examples to load, and metrics that score the answers.

A task has no model and no tokenizer: it turns a split and a seed into
`Example`s, and an answer with its reference into named scores in [0, 1] or
[0, 100]. Its problems are generated, or are rows of a published set, which fill
templates. `catalog` declares the project's tasks.
"""

import collections
import dataclasses
import hashlib
import itertools
import json
import pathlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cascades import Conversation, arguments
from cascades.models.chat import as_conversation
from experiments.tasks.answer_metrics import (
  METRICS,
  Metric,
  Reference,
  accepted_answers,
  find,
)
from experiments.tasks.data_files import (
  DataFile,
  Row,
  RowError,
  as_text,
  get_field,
  get_texts,
  template,
)
from experiments.tasks.generated import Phraser

# Name of the task of a user's file.
FILE = 'file'
SPLITS = ('train', 'validation', 'test')
# Splits of data: one to choose a setting on, and one to report it on.
HALVES = ('choose', 'report')
# Worked examples of published sets, which were written for this project: the
# prompt of a set does not depend on its source.
_WORKED = pathlib.Path(__file__).with_name('worked')
# Upper limit of worked examples taken from the set.
_MAX_WORKED_EXAMPLES = 32
# Draws without a new problem of the split after which the task is exhausted.
_REPEATS = 100_000
# Fields that rows may lack, unless the user names others.
_DEFAULT_ID, _DEFAULT_REFERENCE = 'id', 'reference'
# Field of chat data, which rows may have instead of a prompt.
_MESSAGES = 'messages'
_MAX_ID = 200
# Fields of a config's `file` that a task names otherwise.
_RENAMED = {'prompt': 'question', 'reference': 'answer', 'id': 'key'}

# Id, prompt and reference of a row.
Problem = tuple[str, str | Conversation, Reference]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
  """One prompt with its reference answer.

  Attributes:
    id: Unique within the task; names split, seed and number.
    prompt: Text given to the model, unchanged; or messages.
    reference: The ideal answer; a tuple of all accepted answers where there
      are several, which is empty where the set knows none.
  """

  id: str
  prompt: str | Conversation
  reference: Reference


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """A published set: its name on the hub, and the file to get instead.

  Attributes:
    hub: Name on the Hugging Face hub; None for a set that it lacks.
    config: Configuration on the hub.
    splits: Splits of the hub by those of the task.
    revision: Revision on the hub.
    download: The file to download instead; '' for the table of the hub.
  """

  hub: str | None = None
  config: str | None = None
  splits: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: {'train': 'train', 'test': 'test'}
  )
  revision: str | None = None
  download: str = ''

  @property
  def advice(self) -> str:
    """Advice about a set that is absent or damaged."""
    config = f', configuration {self.config}' if self.config else ''
    table = f'the {self.splits["test"]} table of huggingface.co/datasets'
    return f'give {self.download or f"{table}/{self.hub}{config}"}'


class _HubSplit(DataFile):
  """A split of a set on the hub."""

  def __init__(self, source: Source, split: str):
    super().__init__('path', 'hub.jsonl', source.advice)
    self.name = source.hub or 'the set'
    self._source, self._split = source, split

  def rows(self) -> Iterator[Row]:
    """Yields the rows of the split."""
    source = self._source
    try:
      if not source.hub:
        raise LookupError('it is not on the Hugging Face hub')
      import datasets

      rows = datasets.load_dataset(
        source.hub,
        source.config,
        split=source.splits[self._split],
        revision=source.revision,
      )
    except Exception as e:
      # Every failure of the hub has the same remedy.
      reason = ' '.join(str(e).split()).rstrip('.') or type(e).__name__
      raise ValueError(
        f'path: {self.name} cannot be loaded ({reason}); download and'
        f' {source.advice} with --config.task.path=...'
      ) from e
    for number, row in enumerate(rows):
      yield f'{self._split} row {number}', row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  r"""A set of examples and the metrics of its answers.

  It has a `problem` to draw, or a `source` of rows. A prompt of a published set
  has some worked examples, then the question, and ends where the answer begins:

    <question> <answer>\n\n<question> <answer>\n\n<question>

  Templates name fields of a row in braces: 'Question: {question}\nAnswer:', or
  '{translation.en}' for a field of an object; a name alone is the field. Tasks
  that come from elsewhere derive from this class and override `read`.

  Attributes:
    name: Key in `TASKS`.
    metrics: Metrics of an answer: keys of `METRICS`, or metrics that are not
      registered. The quality is the first score of the first metric; tasks
      without metrics measure only speed.
    max_new_tokens: Limit of an answer: of generated tasks, enough for the
      longest reference in bundled tokens; else a usual limit in Gemma's.
    problem: `problem(rng, phraser)` draws one (key, prompt, reference); the
      phraser writes the reference.
    source: Source of a published set.
    fields: Returns the fields of a row, and raises `RowError` for a bad one;
      None for the row itself.
    key: Field with the id of a row, which is unique in the set; '' takes the
      number of the row.
    question: Template of the question.
    answer: Template of the reference, or the name of a field, which may have a
      list of accepted answers; '' for none.
    no_answer: Reference of a row without answers.
    shots: Default number of worked examples before the question.
    worked_beside: Name of a file, beside that of the set, whose first rows are
      the worked examples; without a file, the hub's validation split has them.
      '' takes them from the file `worked/NAME.jsonl`.
    separator: Text between a question and its answer.
    stop_strings: Texts that end an answer, for models that would go on with the
      next question; metrics see the answer up to the first of them.

  Raises:
    ValueError: A metric is unknown.
  """

  name: str
  metrics: Sequence[Metric | str]
  max_new_tokens: int
  problem: Callable[[random.Random, Phraser], tuple[str, str, str]] | None = (
    None
  )
  source: Source | None = None
  fields: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
  key: str = ''
  question: str = 'Question: {question}\nAnswer:'
  answer: str = ''
  no_answer: Reference = ()
  shots: int = 0
  worked_beside: str = ''
  separator: str = ' '
  stop_strings: tuple[str, ...] = ()

  def __post_init__(self):
    entries = tuple(
      METRICS[metric] if isinstance(metric, str) else metric
      for metric in self.metrics
    )
    object.__setattr__(self, 'metrics', entries)

  @property
  def splits(self) -> tuple[str, ...]:
    """Splits of the task."""
    return tuple(self.source.splits) if self.source else SPLITS

  def load(self, **options: Any) -> Iterator[Example]:
    """Yields the examples of a split; takes what `read` takes."""
    return iter(self.read(**options)[0])

  def read(
    self,
    split: str = 'test',
    seed: int = 0,
    num_examples: int | None = 500,
    path: str | None = None,
    shots: int | None = None,
  ) -> tuple[list[Example], dict[str, Any]]:
    """Reads the examples of a split, and the provenance of its data.

    Examples of a published set come in an order that the seed shuffles, for
    sets are sorted by subject.

    Args:
      split: Split; of generated tasks, one of `SPLITS`.
      seed: The same arguments always yield the same examples.
      num_examples: A smaller number yields a prefix; a generated task ends
        early when no new problem is found.
      path: A file of the set; None for the Hugging Face hub.
      shots: Worked examples before the question; None for the task's.

    Returns:
      The examples; the number of worked examples, the hashes of the files and
      the scorer, or nothing where problems are generated.

    Raises:
      ValueError: The split is unknown, there are not so many shots, or the set
        is absent or damaged; a generated task takes neither path nor shots.
    """
    self.check_split(split)
    source, prefix = self.source, f'{self.name}/{split}'
    if not source:
      if path or shots:
        raise ValueError(
          f'task: {self.name} generates its problems and cannot be combined'
          ' with a path or shots; leave both out.'
        )
      problems, head, data = self._draw_new(split, seed), '', {}
      prefix = f'{prefix}/{seed}'
    else:
      shots = self.shots if shots is None else shots
      worked = self._worked(path, shots)
      file, head = self._open(path, split), self.head(worked)
      problems = list(self.problems_of(file, worked))
      if not problems:
        raise file.refusal('', 'has no rows')
      random.Random(f'{prefix}/{seed}').shuffle(problems)
      names = filter(None, (source.hub, source.config, source.revision))
      origin = {'files': {file.name: file.sha256}}
      origin = origin if path else {'hub': ' '.join(names)}
      data = {'shots': shots, **origin, **self.scorer()}
    selected = itertools.islice(problems, num_examples)
    return [
      Example(id=f'{prefix}/{key}', prompt=f'{head}{question}', reference=x)
      for key, question, x in selected
    ], data

  def check_split(self, split: str) -> None:
    """Raises ValueError for a split that the task lacks."""
    if split not in self.splits:
      raise ValueError(
        f'split: must be one of {", ".join(self.splits)} for {self.name}, got'
        f' {arguments.quote(split)}.'
      )

  def problems(self, seed: str) -> Iterator[tuple[str, str, str]]:
    """Yields (key, prompt, reference) of all splits, without end."""
    rng = random.Random(f'{self.name}/{seed}')
    # The last word is part of the seed: another one gives other references.
    phraser_rng = random.Random(f'{self.name}/{seed}/wording')
    phraser = Phraser(phraser_rng)
    while True:
      yield self.problem(rng, phraser)

  def _draw_new(self, split: str, seed: int) -> Iterator[tuple[int, str, str]]:
    """Yields (number, prompt, reference) of a split, without repeats."""
    prompts: set[str] = set()
    repeats = 0
    for key, prompt, reference in self.problems(f'{split}/{seed}'):
      if repeats == _REPEATS:
        return
      repeats += 1
      if prompt not in prompts and split_of(key) == split:
        yield len(prompts), prompt, reference
        prompts.add(prompt)
        repeats = 0

  def problems_of(
    self,
    file: DataFile,
    worked: Sequence[tuple[str, str]] = (),
    is_new: Callable[[Problem], bool] | None = None,
  ) -> Iterator[Problem]:
    """Yields the problems of the rows, or of those that are new."""
    first_rows: dict[str, str] = {}
    questions = {question.strip() for question, _ in worked}
    for number, (place, row) in enumerate(file.rows()):
      with file.errors_at(place):
        problem = key, prompt, _ = self.problem_of(row, number)
        if str(prompt).strip() in questions:
          raise RowError(
            'is a worked example, so its own answer would stand in its prompt',
            remedy='choose another split, or --config.task.shots=0'
            if self.source
            else 'remove it from one of the files',
          )
        if is_new and not is_new(problem):
          continue
        if key in first_rows:
          raise RowError(
            f'has the same id {arguments.quote(key)} as {first_rows[key]}',
            'remove it, or give each row its own id with --config.file.id',
          )
      first_rows[key] = place
      yield problem

  def problem_of(self, row: Mapping[str, Any], number: int) -> Problem:
    """Returns the key, question and reference of a row."""
    row = self.fields(row) if self.fields else row
    question = template(self.question).fill(row, strip=True)
    accepted = self.accepted(row, strip=True) if self.answer else []
    if not isinstance(accepted, str):
      accepted = tuple(dict.fromkeys(map(str.strip, accepted)))
    key = template(self.key).fill(row, strip=True) if self.key else f'{number}'
    return key, question, accepted or self.no_answer

  def accepted(
    self, row: Mapping[str, Any], strip: bool = False
  ) -> str | list[str]:
    """Returns the reference of a row, or a list of accepted answers."""
    answer, accepted = template(self.answer), None
    if answer.field and isinstance(get_field(row, answer.field), list):
      accepted = get_texts(row, answer.field)
    else:
      accepted = answer.fill(row, strip)
    texts = [accepted] if isinstance(accepted, str) else accepted
    for metric, text in itertools.product(self.metrics, texts):
      if metric.accepts and not metric.accepts(text):
        raise RowError(
          f'has a reference that {metric.name} cannot score,'
          f' {arguments.quote(text)}',
          'fix the row or choose another metric',
        )
    return accepted

  def _open(self, path: str | None, split: str, advice: str = '') -> DataFile:
    """Returns a file of the set, or a split on the hub."""
    if path is None:
      return _HubSplit(self.source, split)
    return DataFile('path', path, advice or self.source.advice)

  def _worked(self, path: str | None, shots: int) -> list[tuple[str, str]]:
    """Returns the worked examples of a published set."""
    if not shots:
      return []
    if self.worked_beside:
      path_beside = path and str(
        pathlib.Path(path).with_name(self.worked_beside)
      )
      advice = 'put the worked examples there, or set shots to 0'
      problems = self.problems_of(self._open(path_beside, 'validation', advice))
      pairs = [x[1:] for x in itertools.islice(problems, _MAX_WORKED_EXAMPLES)]
    else:
      # In the form of a user's worked examples.
      file = _WORKED / f'{self.name}.jsonl'
      rows = DataFile('shots', str(file)).rows() if file.exists() else ()
      pairs = [(row['prompt'], row['reference']) for _, row in rows]
    if not 0 < shots <= len(pairs):
      raise ValueError(
        f'shots: must be from 0 to {len(pairs)} for {self.name}, got {shots}.'
      )
    return pairs[:shots]

  def head(self, worked: Sequence[tuple[str, str]]) -> str:
    """Returns the text before a question."""
    return ''.join(f'{q}{self.separator}{a}\n\n' for q, a in worked)

  def score(self, answer: str, reference: Reference) -> dict[str, float]:
    """Returns the scores of an answer, by name."""
    for stop in self.stop_strings:
      answer = answer.partition(stop)[0]
    scores: dict[str, float] = {}
    for metric in self.metrics:
      scores |= metric.score(answer, reference)
    return scores

  def score_example(self, answer: str, example: Example) -> dict[str, float]:
    """Returns the scores of an answer to an example, by name."""
    return self.score(answer, example.reference)

  @property
  def quality_score(self) -> str | None:
    """Name of the score that is the quality; None without metrics."""
    return self.metrics[0].scores[0] if self.metrics else None

  def external_parts(self) -> list[Any]:
    """Lists code from outside that the name of a point has to hash."""
    return [self]

  def scorer(self) -> dict[str, str]:
    """Returns the libraries, versions and options behind the scores, if any."""
    names = [m.signature() for m in self.metrics if m.signature]
    return {'scorer': ' '.join(names)} if names else {}


def split_of(key: str) -> str:
  """Returns the split of a problem, which its content alone decides.

  A hash of the content decides, not the random generator: no training problem
  can be a held-out one under any seed.
  """
  bucket = hashlib.sha256(key.encode()).digest()[0] % 16
  return {0: 'test', 1: 'validation'}.get(bucket, 'train')


def half_of(example_id: str) -> str:
  """Returns the half of an example as a split, which its id alone decides.

  A guarantee for a setting holds on examples that had no part in its choice,
  in every process, also if rows are added, removed or reordered.
  """
  return HALVES[_digest(example_id)[0] % 2]


def choosing(example_ids: Sequence[str]) -> list[bool]:
  """Returns which examples choose a setting: one of two equal halves.

  They are those of `half_of` but for a few of the larger half. The halves
  depend on all ids and on no score.
  """
  key = lambda x: (half_of(x) != HALVES[0], _digest(x))  # noqa: E731
  order = sorted({*example_ids}, key=key)
  first = {*order[: (len(order) + 1) // 2]}
  return [x in first for x in example_ids]


def _digest(example_id: str) -> bytes:
  # A half of a surrogate pair has no encoding of its own.
  return hashlib.sha256(example_id.encode(errors='surrogatepass')).digest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileTask(Task):
  """The task `file`: a user's own prompts, references and metric.

  Rows become examples in the order of the file; there is no shuffle, so that a
  smaller `num_examples` is a prefix. Rows whose prompt and reference are those
  of an earlier row are left out: copies are no evidence of their own, and those
  with other ids would lie in both halves. The fields `file` of a config name
  the file and map its fields; `--data` and `--metric` are short for two.
  """

  # Enough for a paragraph; a config's task.max_new_tokens changes it.
  max_new_tokens: int = 256
  key: str = _DEFAULT_ID
  question: str = 'prompt'
  answer: str = _DEFAULT_REFERENCE
  path: str = ''
  examples: str = ''
  is_chat: bool = False

  @property
  def splits(self) -> tuple[str, ...]:
    """Everything, or one half."""
    return ('all', *HALVES)

  def read(self, split='all', seed=0, num_examples=500, path=None, shots=None):
    """Reads examples in the order of the file; see `Task.read`."""
    del seed  # The order is that of the file.
    self.check_split(split)
    if path or shots:
      raise ValueError(
        'task.path: task.path and task.shots are not supported by the task'
        ' file; give file.path, file.examples and file.shots.'
      )
    if not self.path:
      raise ValueError(
        'data: no file is given; give one, such as --data=mine.jsonl.'
      )
    worked, hashes = self._worked_examples() if self.examples else ([], {})
    file, head = DataFile('data', self.path), self.head(worked)
    contents: collections.Counter[bytes] = collections.Counter()

    def is_new(problem: Problem) -> bool:
      # What a model sees and what is scored, without outer spaces.
      _, prompt, reference = problem
      messages = [(x, text.strip()) for x, text in as_conversation(prompt)]
      references = sorted({x.strip() for x in accepted_answers(reference)})
      text = json.dumps([messages, references])
      content = hashlib.sha256(text.encode()).digest()
      contents[content] += 1
      return contents[content] == 1

    problems = self.problems_of(file, worked, is_new)
    if split != 'all':
      problems = (x for x in problems if half_of(x[0]) == split)
    examples = [
      Example(id=x, prompt=head + y if isinstance(y, str) else y, reference=z)
      for x, y, z in itertools.islice(problems, num_examples)
    ]
    if not examples:
      raise file.refusal('', f'has no rows of split {split}', 'give more rows')
    if repeats := contents.total() - len(contents):
      print(
        f'data: {repeats} of {contents.total()} rows repeat the prompt and'
        ' reference of an earlier row and are left out.',
        file=sys.stderr,
      )
    if self.metrics and ':' in self.metrics[0].name:
      # A function of the user's is tried before anything is decoded.
      reference = examples[0].reference
      for answer in ('', *accepted_answers(reference)[:1]):
        self.score(answer, reference)
    hashes[file.name] = file.sha256
    return examples, {'shots': len(worked), 'files': hashes, **self.scorer()}

  def _worked_examples(self) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Returns the worked examples before each prompt, and their hash."""
    file, worked = DataFile('file.examples', self.examples), []
    for place, row in itertools.islice(file.rows(), self.shots or None):
      with file.errors_at(place):
        prompt, references = self._content(row)
        if not references:
          raise RowError(f'has no field {self.answer!r}')
      worked.append((prompt, accepted_answers(references)[0]))
    if len(worked) < max(1, self.shots):
      raise file.refusal(
        '',
        f'has {len(worked)} rows, but file.shots is {self.shots}',
        'give more rows or fewer shots',
      )
    return worked, {f'examples {file.name}': file.sha256}

  def problem_of(self, row: Mapping[str, Any], number: int) -> Problem:
    """Returns the id, by default a hash, the prompt and the reference."""
    del number
    content = self._content(row)
    if row.get(self.key) is None and self.key == _DEFAULT_ID:
      text = json.dumps(content).encode()
      return hashlib.sha256(text).hexdigest()[:32], *content
    text = as_text(get_field(row, self.key))
    if not text or len(text) > _MAX_ID:
      raise RowError(
        f'has a field {self.key!r} that is not a text of 1 to {_MAX_ID}'
        ' characters'
      )
    return text, *content

  def _content(
    self, row: Mapping[str, Any]
  ) -> tuple[str | Conversation, Reference]:
    """Returns the prompt and the reference of a row."""
    question = template(self.question)
    if _MESSAGES not in row or {*row} & {*question.fields}:
      return question.fill(row), self._references(row)
    prompt, answer = self._conversation(row[_MESSAGES])
    if answer and row.get(self.answer) is None:
      row = {**row, self.answer: answer}
    return prompt, self._references(row)

  def _conversation(self, messages: Any) -> tuple[Conversation, str | None]:
    """Returns the messages to answer, and the answer that follows them."""
    if not self.is_chat or self.examples:
      raise RowError(
        f'has {_MESSAGES!r} but no prompt',
        'set --config.chat=True without file.examples, or name the field of'
        ' prompts with --config.file.prompt',
      )
    try:
      conversation = Conversation(messages)
      if conversation[-1][0] != 'assistant':
        return conversation, None
      # The last message of chat data is the answer.
      return Conversation(conversation[:-1]), conversation[-1][1]
    except ValueError as error:
      reason = str(error).rstrip('.')
      raise RowError(f'is not a conversation ({reason})') from None

  def _references(self, row: Mapping[str, Any]) -> Reference:
    """Returns the accepted answers of a row, one as a text; () for none."""
    is_needed = self.answer != _DEFAULT_REFERENCE or any(
      metric.needs_reference for metric in self.metrics
    )
    value = row.get(self.answer)
    if not is_needed and (value is None or not str(value).strip()):
      return ()
    texts = self.accepted(row)
    if not texts and is_needed:
      raise RowError(f'has an empty {self.answer!r}')
    texts = accepted_answers(texts)
    return texts[0] if len(texts) == 1 else texts

  def external_parts(self) -> list[Any]:
    """Lists the metric of a user; the library's is in the name of the task."""
    metrics = [x for x in self.metrics if not METRICS.is_builtin(x.name)]
    return [*metrics, *(self.scorer().values() or [''])] if metrics else []


def file_task(config: Mapping[str, Any]) -> FileTask:
  """Returns the task of a config."""
  if 'file' not in config:
    raise ValueError(
      'tasks: the task file needs a file; run --config=configs/your_data.py.'
    )
  fields = {_RENAMED.get(k, k): x for k, x in (config['file'] or {}).items()}
  metrics = [find(name) for name in (fields.pop('metric', ''),) if name]
  # After worked examples, a model goes on with examples of its own.
  stops = ('\n\n',) if fields.get('examples') else ()
  fields['stop_strings'] = tuple(fields.get('stop_strings') or stops)
  task = FileTask(
    name=':'.join([FILE, *(metric.name for metric in metrics)]),
    metrics=metrics,
    is_chat=bool(config.get('chat')),
    **fields,
  )
  template(task.question, 'file.prompt')
  template(task.answer, 'file.reference')
  return task
