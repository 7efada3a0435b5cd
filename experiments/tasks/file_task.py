"""The task `file`: a user's own prompts, references and metric.

Rows become examples in the order of the file; there is no shuffle, so that a
smaller `num_examples` is a prefix. Rows whose prompt and reference are those of
an earlier row are left out: copies are no evidence of their own, and those with
other ids would lie in both halves. The fields `file` of a config name the file
and map its fields; `--data` and `--metric` are short for two of them.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from cascades import Conversation, arguments
from cascades.models.chat import as_conversation
from experiments.tasks import halves, metric_specs
from experiments.tasks.answer_metrics import METRICS, Metric
from experiments.tasks.data_files import MEND, DataFile
from experiments.tasks.short_answers import Reference, accepted_answers
from experiments.tasks.task import Example, Task, check_split

NAME = 'file'
# Everything, or one half.
SPLITS = ('all', *get_args(halves.Half))
# Enough for a paragraph; a config's task.max_new_tokens changes it.
_MAX_NEW_TOKENS = 256
# Fields that rows may lack, unless the user names others.
_DEFAULT_ID, _DEFAULT_REFERENCE = 'id', 'reference'
# Field of chat data, which rows may have instead of a prompt.
_MESSAGES = 'messages'
_MAX_ID = 200
_END_OF_EXAMPLE = '\n\n'

_Fields = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSettings:
  """The fields `file` of a config, whose defaults are in configs/common.py.

  A template is the name of a field of the rows, or a text with names in braces,
  such as 'Question: {question}'. Numbers are read as texts.

  Attributes:
    path: The file, or its URL.
    prompt: Template of the prompt. Rows without its fields may have `messages`,
      a chat whose last message is the reference if the assistant says it.
    reference: Template of the answer, or the name of a list of accepted ones.
      Rows may lack 'reference' if the metric needs none.
    id: Name of the field with ids; rows may lack 'id'.
    examples: A file of worked examples with the same fields; '' for none.
    shots: Number of worked examples; 0 takes all.
    separator: Text between the prompt of a worked example and its answer.
    metric: A metric as `metric_specs.find` takes it; '' measures speed only.
    stop_strings: Texts that end an answer; if empty, what ends a worked
      example, a blank line, does.
    too_long: See `prompt_lengths.fit`.
  """

  path: str
  prompt: str
  reference: str
  id: str
  examples: str
  shots: int
  separator: str
  metric: str
  stop_strings: Sequence[str]
  too_long: str


class _RowError(Exception):
  """A fault of a row, and the advice of the error."""

  def __init__(self, fault: str, advice: str = MEND):
    super().__init__(fault, advice)


@contextlib.contextmanager
def _refusals(
  file: DataFile, place: str, has_good_rows: bool = False
) -> Iterator[None]:
  """Names the place of a row in its errors."""
  try:
    yield
  except _RowError as error:
    fault, advice = error.args
    if has_good_rows and advice.startswith('name the field'):
      advice = f'correct the row, or {advice}'
    raise file.refusal(place, fault, advice) from None


class Template:
  """A field of rows, or a text with the names of fields in braces.

  Attributes:
    fields: Names of the fields.
  """

  def __init__(self, option: str, text: str):
    """Parses the text."""
    self._option = option
    try:
      parts = list(string.Formatter().parse(text))
    except ValueError as error:
      raise ValueError(
        f'{option}: {arguments.quote(text)} is not a valid template ({error});'
        ' write {{ and }} for braces of the text.'
      ) from None
    is_name = '{' not in text and '}' not in text
    self._parts = [('', text)] if is_name else [part[:2] for part in parts]
    for _, name, *options in [] if is_name else parts:
      if name is not None and (not name or {*name} & {*'.[]!'} or any(options)):
        raise ValueError(
          f'{option}: a field of {arguments.quote(text)} must be a name alone,'
          f' got {arguments.quote(name)}; leave out indices, attributes and'
          ' formats.'
        )
    self.fields = [name for _, name in self._parts if name is not None]
    if not self.fields:
      raise ValueError(
        f'{option}: {arguments.quote(text)} names no field; put a'
        ' name in braces.'
      )

  def fill(self, row: _Fields) -> str:
    """Returns the text of a row."""
    values = {name: self._text(row, name) for name in self.fields}
    if not any(value.strip() for value in values.values()):
      names = ' and '.join(map(repr, values))
      raise _RowError(f'has an empty {names}')
    return ''.join(
      text + ('' if name is None else values[name])
      for text, name in self._parts
    )

  def _text(self, row: _Fields, name: str) -> str:
    value = self.value(row, name)
    text = as_text(value)
    if text is None:
      kind = 'a finite number' if isinstance(value, float) else 'a text'
      raise _RowError(f'has a field {arguments.quote(name)} that is not {kind}')
    return text

  def value(self, row: _Fields, name: str) -> Any:
    """Returns a field of a row."""
    if row.get(name) is None:
      fault = f'has no field {arguments.quote(name)}'
      if name not in row:
        fault += f', only {", ".join(map(arguments.quote, row))}'
      raise _RowError(
        fault, f'name the field of the rows with --config.{self._option}'
      )
    return row[name]


def as_text(value: Any) -> str | None:
  """Returns a text or a finite number as text; None for other values."""
  if isinstance(value, bool | int | float):
    # NaN is how tables say that a value is missing.
    return json.dumps(value) if math.isfinite(value) else None
  return value if isinstance(value, str) else None


class FileReader:
  """Reads the examples of a file."""

  def __init__(
    self, settings: FileSettings, metric: Metric | None, is_chat: bool = False
  ):
    """Checks the settings; opens nothing."""
    self.settings, self.metric, self._is_chat = settings, metric, is_chat
    self._prompt = Template('file.prompt', settings.prompt)
    self._reference = Template('file.reference', settings.reference)
    self._optional = (_MESSAGES, settings.id, *self._reference.fields)
    self._shots: list[tuple[Any, str]] = []
    self._files: dict[str, DataFile] = {}
    self.counts: collections.Counter[bool] = collections.Counter()

  def load(
    self,
    split: str = 'all',
    seed: int = 0,
    num_examples: int = 500,
    path: str | None = None,
    shots: int | None = None,
  ) -> Iterator[Example]:
    """Yields examples in the order of the file; see `Task.load`."""
    del seed  # The order is that of the file.
    check_split(NAME, split, SPLITS)
    if path or shots:
      raise ValueError(
        'task.path: task.path and task.shots are not supported by the task'
        ' file; give file.path, file.examples and file.shots.'
      )
    if not self.settings.path:
      raise ValueError(
        'data: no file is given; give one, such as --data=mine.jsonl.'
      )
    head = self._worked_examples()
    file = DataFile('data', self.settings.path)
    self._files[file.name] = file
    examples = self._examples(file, head)
    if split != 'all':
      examples = (x for x in examples if halves.half_of(x.id) == split)
    is_empty = True
    for example in itertools.islice(examples, num_examples):
      is_empty = False
      yield example
    if is_empty:
      raise file.refusal('', f'has no rows of split {split}', 'give more rows')

  def provenance(self) -> dict[str, Any]:
    """Returns the hashes of the rows that `load` read, and their scorer."""
    data: dict[str, Any] = {
      'shots': len(self._shots),
      'files': {name: file.sha256 for name, file in self._files.items()},
    }
    if self.metric and self.metric.signature:
      data['scorer'] = self.metric.signature()
    return data

  def _worked_examples(self) -> str:
    """Returns the worked examples, which come before each prompt."""
    self._shots, self._files = [], {}
    self.counts.clear()
    if not self.settings.examples:
      return ''
    file = DataFile('file.examples', self.settings.examples)
    rows = file.rows(self._prompt.fields, self._optional)
    for place, row in itertools.islice(rows, self.settings.shots or None):
      with _refusals(file, place):
        prompt, references = self._problem(row)
        if not references:
          raise _RowError(f'has no field {self.settings.reference!r}')
      self._shots.append((prompt, accepted_answers(references)[0]))
    if len(self._shots) < max(1, self.settings.shots):
      raise file.refusal(
        '',
        f'has {len(self._shots)} rows, but file.shots is {self.settings.shots}',
        'give more rows or fewer shots',
      )
    self._files[f'examples {file.name}'] = file
    separator = self.settings.separator
    return ''.join(
      f'{q}{separator}{a}{_END_OF_EXAMPLE}' for q, a in self._shots
    )

  def _examples(self, file: DataFile, head: str) -> Iterator[Example]:
    """Yields the examples of all rows that repeat no earlier row."""
    first_places: dict[str, str] = {}
    contents: set[bytes] = set()
    questions = {question.strip() for question, _ in self._shots}
    for place, row in file.rows(self._prompt.fields, self._optional):
      with _refusals(file, place, has_good_rows=bool(first_places)):
        prompt, reference = self._problem(row)
        if str(prompt).strip() in questions:
          raise _RowError(
            'is a worked example of file.examples, so its own answer would'
            ' stand in its prompt',
            'remove it from one of the files',
          )
        content = _content_hash(prompt, reference)
        self.counts[content in contents] += 1
        if content in contents:
          continue
        name = self._id(row, prompt, reference)
        if name in first_places:
          raise _RowError(
            f'has the same id {arguments.quote(name)} as {first_places[name]}',
            'remove it, or give each row its own id with --config.file.id',
          )
      if not first_places:
        metric_specs.check_first(self.metric, reference)
      first_places[name] = place
      contents.add(content)
      if isinstance(prompt, str):
        prompt = head + prompt
      yield Example(id=name, prompt=prompt, reference=reference)

  def _problem(self, row: _Fields) -> tuple[str | Conversation, Reference]:
    """Returns the prompt and the reference of a row."""
    if _MESSAGES not in row or {*row} & {*self._prompt.fields}:
      return self._prompt.fill(row), self._references(row)
    prompt, answer = self._conversation(row[_MESSAGES])
    if answer and row.get(self.settings.reference) is None:
      row = {**row, self.settings.reference: answer}
    return prompt, self._references(row)

  def _conversation(self, messages: Any) -> tuple[Conversation, str | None]:
    """Returns the messages to answer, and the answer that follows them."""
    if not self._is_chat:
      raise _RowError(
        f'has {_MESSAGES!r} but no prompt',
        'set --config.chat=True, or name the field of prompts with'
        ' --config.file.prompt',
      )
    if self.settings.examples:
      raise _RowError(
        f'has {_MESSAGES!r}, which cannot be combined with file.examples',
        'write the worked examples as messages',
      )
    try:
      conversation = Conversation(messages)
      if not conversation.is_continued:
        return conversation, None
      # The last message of chat data is the answer.
      return Conversation(conversation[:-1]), conversation[-1][1]
    except ValueError as error:
      reason = str(error).rstrip('.')
      raise _RowError(f'is not a conversation ({reason})', MEND) from None

  def _references(self, row: _Fields) -> Reference:
    """Returns the accepted answers of a row, one as a text; () for none."""
    name, metric = self.settings.reference, self.metric
    is_needed = name != _DEFAULT_REFERENCE or (
      metric is not None and metric.needs_reference
    )
    value = row.get(name)
    if not is_needed and (value is None or not str(value).strip()):
      return ()
    if self._reference.fields == [name] and isinstance(value, list | tuple):
      texts = [as_text(item) for item in value]
      if None in texts:
        raise _RowError(f'has a field {name!r} that is not a list of texts')
      texts = [text for text in dict.fromkeys(texts) if text and text.strip()]
      if not texts and is_needed:
        raise _RowError(f'has an empty {name!r}')
    else:
      texts = [self._reference.fill(row)]
    for text in texts if metric and metric.accepts else ():
      if not metric.accepts(text):
        raise _RowError(
          f'has a reference that {metric.name} cannot score,'
          f' {arguments.quote(text)}',
          'fix the row or choose another metric',
        )
    return texts[0] if len(texts) == 1 else tuple(texts)

  def _id(self, row: _Fields, *content: Any) -> str:
    """Returns the id of a row, by default a hash of its content."""
    field = self.settings.id
    if row.get(field) is None and field == _DEFAULT_ID:
      text = json.dumps(content)
      return hashlib.sha256(text.encode()).hexdigest()[:32]
    if row.get(field) is None:
      advice = 'fix the row or name its id with --config.file.id'
      raise _RowError(f'has no field {field!r}', advice)
    text = as_text(row[field])
    if not text or len(text) > _MAX_ID:
      raise _RowError(
        f'has a field {field!r} that is not a text of 1 to {_MAX_ID} characters'
      )
    return text


def _content_hash(prompt: str | Conversation, reference: Reference) -> bytes:
  """Hashes what a model sees and what is scored, without outer spaces."""
  messages = [(role, text.strip()) for role, text in as_conversation(prompt)]
  references = sorted({text.strip() for text in accepted_answers(reference)})
  return hashlib.sha256(json.dumps([messages, references]).encode()).digest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileTask(Task):
  """A task of a file."""

  reader: FileReader

  def provenance(self, path: str | None, shots: int | None) -> dict[str, Any]:
    """Returns the hashes of the rows that were read, and their scorer."""
    del path, shots  # The reader has them from the config.
    return self.reader.provenance()

  def notes(self) -> tuple[str, ...]:
    """Returns a line on the rows that were left out, if there are any."""
    repeats, total = self.reader.counts[True], self.reader.counts.total()
    line = (
      f'data: {repeats} of {total} rows repeat the prompt and reference of an'
      ' earlier row and are left out.'
    )
    return (line,) if repeats else ()

  def external_parts(self) -> list[Any]:
    """Lists the metric of a user; the library's is in the name of the task."""
    metrics = [x for x in self.metrics if not METRICS.is_builtin(x.name)]
    return [*metrics, self.signature()] if metrics else []


def _configure(config: Mapping[str, Any]) -> Task:
  """Returns the task of a config."""
  fields = dict(config.get('file') or {})
  names = {field.name for field in dataclasses.fields(FileSettings)}
  if absent := names - {*fields}:
    raise ValueError(
      f'file.{min(absent)}: the config lacks this field; build the config with'
      " common.sweep('file')."
    )
  settings = FileSettings(**fields)
  metric = metric_specs.find(settings.metric) if settings.metric else None
  reader = FileReader(settings, metric, bool(config.get('chat')))
  # After worked examples, a model goes on with examples of its own.
  stop_strings = (_END_OF_EXAMPLE,) if settings.examples else ()
  return FileTask(
    name=f'{NAME}:{metric.name}' if metric else NAME,
    load=reader.load,
    metrics=(metric,) if metric else (),
    max_new_tokens=_MAX_NEW_TOKENS,
    shots=settings.shots,
    stop_strings=tuple(settings.stop_strings or stop_strings),
    reader=reader,
  )


def _load(**fields: Any) -> Iterator[Example]:
  """Refuses to load: a file has to be named by a config."""
  del fields
  raise ValueError(
    'tasks: the task file needs a file; run --config=configs/your_data.py.'
  )
  yield


TASK = Task(
  name=NAME,
  load=_load,
  metrics=(),
  max_new_tokens=_MAX_NEW_TOKENS,
  configure=_configure,
)
