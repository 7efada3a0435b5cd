"""The task `file`: a user's own prompts, references and metric.

Rows become examples in the order of the file; there is no shuffle, so that a
smaller `num_examples` is a prefix. Rows whose prompt and reference are those of
an earlier row are left out: copies are no evidence of their own, and those with
other ids would lie in both halves. The fields `file` of a config name the file
and map its fields; `--data` and `--metric` are short for two of them.
"""

import collections
import dataclasses
import hashlib
import itertools
import json
import types
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from cascades import Conversation, arguments
from cascades.models.chat import as_conversation
from experiments.tasks import halves, metric_specs
from experiments.tasks.answer_metrics import METRICS, Metric
from experiments.tasks.data_files import (
  DataFile,
  RowError,
  Template,
  as_text,
  get_field,
  get_texts,
)
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
# Of fields that a config's own `file` lacks; those of configs.common.
_DEFAULTS: dict[str, Any] = dict(
  path='', prompt='prompt', examples='', shots=0, separator=' ', metric=''
)
_DEFAULTS |= dict(reference=_DEFAULT_REFERENCE, id=_DEFAULT_ID, stop_strings=())

_Fields = Mapping[str, Any]


class FileReader:
  """Reads the examples of a file."""

  def __init__(self, settings: Any, metric: Metric | None, is_chat: bool):
    """Parses the templates of the fields `file` of a config; opens nothing."""
    self.settings, self.metric, self._is_chat = settings, metric, is_chat
    self._prompt = Template('file.prompt', settings.prompt)
    self._reference = Template('file.reference', settings.reference)
    self._optional = (_MESSAGES, settings.id, *self._reference.fields)
    self.shots: list[tuple[Any, str]] = []
    self.files: dict[str, DataFile] = {}
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
    self.files[file.name] = file
    examples = self._examples(file, head)
    if split != 'all':
      examples = (x for x in examples if halves.half_of(x.id) == split)
    is_empty = True
    for example in itertools.islice(examples, num_examples):
      is_empty = False
      yield example
    if is_empty:
      raise file.refusal('', f'has no rows of split {split}', 'give more rows')

  def _worked_examples(self) -> str:
    """Returns the worked examples, which come before each prompt."""
    self.shots, self.files = [], {}
    self.counts.clear()
    if not self.settings.examples:
      return ''
    file = DataFile('file.examples', self.settings.examples)
    rows = file.rows(self._prompt.fields, self._optional)
    for place, row in itertools.islice(rows, self.settings.shots or None):
      with file.errors_at(place):
        prompt, references = self._problem(row)
        if not references:
          raise RowError(f'has no field {self.settings.reference!r}')
      self.shots.append((prompt, accepted_answers(references)[0]))
    if len(self.shots) < max(1, self.settings.shots):
      raise file.refusal(
        '',
        f'has {len(self.shots)} rows, but file.shots is {self.settings.shots}',
        'give more rows or fewer shots',
      )
    self.files[f'examples {file.name}'] = file
    separator = self.settings.separator
    return ''.join(f'{q}{separator}{a}{_END_OF_EXAMPLE}' for q, a in self.shots)

  def _examples(self, file: DataFile, head: str) -> Iterator[Example]:
    """Yields the examples of all rows that repeat no earlier row."""
    first_places: dict[str, str] = {}
    contents: set[bytes] = set()
    questions = {question.strip() for question, _ in self.shots}
    for place, row in file.rows(self._prompt.fields, self._optional):
      with file.errors_at(place):
        prompt, reference = self._problem(row)
        if str(prompt).strip() in questions:
          raise RowError(
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
          raise RowError(
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
      raise RowError(
        f'has {_MESSAGES!r} but no prompt',
        'set --config.chat=True, or name the field of prompts with'
        ' --config.file.prompt',
      )
    if self.settings.examples:
      raise RowError(
        f'has {_MESSAGES!r}, which cannot be combined with file.examples',
        'write the worked examples as messages',
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

  def _references(self, row: _Fields) -> Reference:
    """Returns the accepted answers of a row, one as a text; () for none."""
    name, metric = self.settings.reference, self.metric
    is_needed = name != _DEFAULT_REFERENCE or (
      metric is not None and metric.needs_reference
    )
    value = row.get(name)
    if not is_needed and (value is None or not str(value).strip()):
      return ()
    if isinstance(value, list) and self._reference.fields == [name]:
      texts = get_texts(row, name)
      if not texts and is_needed:
        raise RowError(f'has an empty {name!r}')
    else:
      texts = [self._reference.fill(row)]
    for text in texts if metric else ():
      metric.check_reference(text)
    return texts[0] if len(texts) == 1 else tuple(texts)

  def _id(self, row: _Fields, *content: Any) -> str:
    """Returns the id of a row, by default a hash of its content."""
    field = self.settings.id
    if row.get(field) is None and field == _DEFAULT_ID:
      text = json.dumps(content)
      return hashlib.sha256(text.encode()).hexdigest()[:32]
    text = as_text(get_field(row, field))
    if not text or len(text) > _MAX_ID:
      raise RowError(
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
    data: dict[str, Any] = {
      'shots': len(self.reader.shots),
      'files': {k: file.sha256 for k, file in self.reader.files.items()},
    }
    return data | ({'scorer': x} if (x := self.signature()) else {})

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
  if 'file' not in config:
    raise ValueError(
      'tasks: the task file needs a file; run --config=configs/your_data.py.'
    )
  fields = _DEFAULTS | dict(config['file'] or {})
  settings = types.SimpleNamespace(**fields)
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


TASK = Task(
  name=NAME,
  load=lambda **_: _configure({}),
  metrics=(),
  max_new_tokens=_MAX_NEW_TOKENS,
  configure=_configure,
)
