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
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from cascades import Conversation, arguments
from cascades.models.chat import as_conversation
from experiments.tasks import halves
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
  Template,
  as_text,
  get_field,
  get_texts,
)
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileTask(Task):
  """A task of a file."""

  path: str
  examples: str
  is_chat: bool
  prompt: Template
  reference: Template
  # Of the last `load`: worked examples, files by name, and rows that repeat.
  worked: list[tuple[Any, str]] = dataclasses.field(default_factory=list)
  files: dict[str, DataFile] = dataclasses.field(default_factory=dict)
  counts: collections.Counter[bool] = dataclasses.field(
    default_factory=collections.Counter
  )

  def load(
    self,
    split: str = 'all',
    seed: int = 0,
    num_examples: int | None = 500,
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
    if not self.path:
      raise ValueError(
        'data: no file is given; give one, such as --data=mine.jsonl.'
      )
    for read in (self.worked, self.files, self.counts):
      read.clear()
    head = self._worked_examples() if self.examples else ''
    file = DataFile('data', self.path)
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

  @property
  def metric(self) -> Metric | None:
    """The metric; None for speed alone."""
    return self.metrics[0] if self.metrics else None

  def _rows(self, file: DataFile) -> Iterator[Row]:
    """Yields the rows of a file with the fields that are used."""
    optional = (_MESSAGES, self.key, *self.reference.fields)
    return file.rows(self.prompt.fields, optional)

  def _worked_examples(self) -> str:
    """Returns the worked examples, which come before each prompt."""
    file = DataFile('file.examples', self.examples)
    for place, row in itertools.islice(self._rows(file), self.shots or None):
      with file.errors_at(place):
        prompt, references = self._problem(row)
        if not references:
          raise RowError(f'has no field {self.answer!r}')
      self.worked.append((prompt, accepted_answers(references)[0]))
    if len(self.worked) < max(1, self.shots):
      raise file.refusal(
        '',
        f'has {len(self.worked)} rows, but file.shots is {self.shots}',
        'give more rows or fewer shots',
      )
    self.files[f'examples {file.name}'] = file
    return ''.join(
      f'{q}{self.separator}{a}{_END_OF_EXAMPLE}' for q, a in self.worked
    )

  def _examples(self, file: DataFile, head: str) -> Iterator[Example]:
    """Yields the examples of all rows that repeat no earlier row."""
    first_places: dict[str, str] = {}
    contents: set[bytes] = set()
    questions = {question.strip() for question, _ in self.worked}
    for place, row in self._rows(file):
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
      if not first_places and self.metric and ':' in self.metric.name:
        # A function of the user's is tried before anything is decoded.
        for answer in ('', *accepted_answers(reference)[:1]):
          self.metric.score(answer, reference)
      first_places[name] = place
      contents.add(content)
      if isinstance(prompt, str):
        prompt = head + prompt
      yield Example(id=name, prompt=prompt, reference=reference)

  def _problem(self, row: _Fields) -> tuple[str | Conversation, Reference]:
    """Returns the prompt and the reference of a row."""
    if _MESSAGES not in row or {*row} & {*self.prompt.fields}:
      return self.prompt.fill(row), self._references(row)
    prompt, answer = self._conversation(row[_MESSAGES])
    if answer and row.get(self.answer) is None:
      row = {**row, self.answer: answer}
    return prompt, self._references(row)

  def _conversation(self, messages: Any) -> tuple[Conversation, str | None]:
    """Returns the messages to answer, and the answer that follows them."""
    if not self.is_chat:
      raise RowError(
        f'has {_MESSAGES!r} but no prompt',
        'set --config.chat=True, or name the field of prompts with'
        ' --config.file.prompt',
      )
    if self.examples:
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
    name, metric = self.answer, self.metric
    is_needed = name != _DEFAULT_REFERENCE or (
      metric is not None and metric.needs_reference
    )
    value = row.get(name)
    if not is_needed and (value is None or not str(value).strip()):
      return ()
    if isinstance(value, list) and self.reference.fields == [name]:
      texts = get_texts(row, name)
      if not texts and is_needed:
        raise RowError(f'has an empty {name!r}')
    else:
      texts = [self.reference.fill(row)]
    for text in texts if metric else ():
      metric.check_reference(text)
    return texts[0] if len(texts) == 1 else tuple(texts)

  def _id(self, row: _Fields, *content: Any) -> str:
    """Returns the id of a row, by default a hash of its content."""
    field = self.key
    if row.get(field) is None and field == _DEFAULT_ID:
      text = json.dumps(content)
      return hashlib.sha256(text.encode()).hexdigest()[:32]
    text = as_text(get_field(row, field))
    if not text or len(text) > _MAX_ID:
      raise RowError(
        f'has a field {field!r} that is not a text of 1 to {_MAX_ID} characters'
      )
    return text

  def provenance(self, path: str | None, shots: int | None) -> dict[str, Any]:
    """Returns the hashes of the rows that were read, and their scorer."""
    del path, shots  # The config has them.
    data: dict[str, Any] = {
      'shots': len(self.worked),
      'files': {k: file.sha256 for k, file in self.files.items()},
    }
    return data | ({'scorer': x} if (x := self.signature()) else {})

  def notes(self) -> tuple[str, ...]:
    """Returns a line on the rows that were left out, if there are any."""
    repeats, total = self.counts[True], self.counts.total()
    line = (
      f'data: {repeats} of {total} rows repeat the prompt and reference of an'
      ' earlier row and are left out.'
    )
    return (line,) if repeats else ()

  def external_parts(self) -> list[Any]:
    """Lists the metric of a user; the library's is in the name of the task."""
    metrics = [x for x in self.metrics if not METRICS.is_builtin(x.name)]
    return [*metrics, self.signature()] if metrics else []


def _content_hash(prompt: str | Conversation, reference: Reference) -> bytes:
  """Hashes what a model sees and what is scored, without outer spaces."""
  messages = [(role, text.strip()) for role, text in as_conversation(prompt)]
  references = sorted({text.strip() for text in accepted_answers(reference)})
  return hashlib.sha256(json.dumps([messages, references]).encode()).digest()


def _configure(config: Mapping[str, Any]) -> Task:
  """Returns the task of a config."""
  if 'file' not in config:
    raise ValueError(
      'tasks: the task file needs a file; run --config=configs/your_data.py.'
    )
  fields = _DEFAULTS | dict(config['file'] or {})
  metric = find(fields['metric']) if fields['metric'] else None
  # After worked examples, a model goes on with examples of its own.
  stop_strings = (_END_OF_EXAMPLE,) if fields['examples'] else ()
  return FileTask(
    name=f'{NAME}:{metric.name}' if metric else NAME,
    metrics=(metric,) if metric else (),
    max_new_tokens=_MAX_NEW_TOKENS,
    path=fields['path'],
    examples=fields['examples'],
    is_chat=bool(config.get('chat')),
    prompt=Template('file.prompt', fields['prompt']),
    reference=Template('file.reference', fields['reference']),
    answer=fields['reference'],
    key=fields['id'],
    separator=fields['separator'],
    shots=fields['shots'],
    stop_strings=tuple(fields['stop_strings'] or stop_strings),
  )


TASK = dataclasses.replace(_configure({'file': None}), configure=_configure)
