"""Renders Jinja templates that others wrote, such as a model's chat template.

Jinja's immutable sandbox refuses private attributes and changes of arguments.
Only methods and filters are allowed that keep the characters of a text apart: a
`Mask` shows which characters of the result come from texts of the variables. A
template may take long.
"""

import functools
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.sandbox
import jinja2.visitor

from cascades.untrusted import display

# Characters of a template and of its result; Gemma 4's has 12,000.
MAX_CHARS = 2**20
# Characters of a reason that an error shows.
_MAX_REASON = 300
# Methods of a text that a template may call.
_TEXT_METHODS = frozenset(
  'capitalize count endswith find index isalnum isalpha isdigit islower'
  ' isnumeric isspace isupper join lower lstrip partition removeprefix'
  ' removesuffix replace rfind rindex rpartition rsplit rstrip split'
  ' splitlines startswith strip title upper'.split()
)
_FILTERS = (
  'abs capitalize count d default dictsort first float int items last length'
  ' list lower map max min reject rejectattr reverse round select'
  ' selectattr sort title trim unique upper'
).split()
# Private characters of Unicode, which replace those of texts.
_PRIVATE = range(0xF0000, 0x10FFFE)


class RefusedError(Exception):
  """The reason that a template gives for refusing its variables."""


class Template:
  """A compiled template."""

  def __init__(self, source: str, option: str):
    self._option = option
    self._lock = threading.Lock()
    if len(source) > MAX_CHARS:
      raise self._error(f'has more than {MAX_CHARS} characters')
    self._environment = _Environment()
    try:
      self._template = self._environment.from_string(source)
    except Exception as error:
      raise self._error(f'is not a valid template ({_reason(error)})') from None

  def render(
    self, variables: Mapping[str, Any], mask: 'Mask | None' = None
  ) -> str:
    """Returns the text that the template makes of variables."""
    with self._lock:
      self._environment.mask = mask
      try:
        text = ''
        for part in self._template.generate(variables):
          text += part
          if len(text) > MAX_CHARS:
            raise jinja2.exceptions.SecurityError(
              f'it makes more than {MAX_CHARS} characters'
            )
        return text
      except RefusedError:
        raise
      # Every error of an untrusted template is reported as its fault.
      except Exception as error:
        raise self._error(f'cannot be rendered ({_reason(error)})') from None

  def _error(self, reason: str) -> ValueError:
    """Returns the error of the template, for a reason."""
    return ValueError(f'{self._option}: {reason}; give another template.')


def _reason(error: Exception) -> str:
  """Returns the reason of an error, in one line."""
  text = display.printable(str(error).strip().rstrip('.'))[:_MAX_REASON]
  return text.replace('\n', ' ') or type(error).__name__


def _raise_exception(message: object = '') -> None:
  """Refuses the variables; templates call it."""
  raise RefusedError(_reason(Exception(str(message)[: 2 * _MAX_REASON])))


class Mask:
  """Replaces characters of messages by characters that occur nowhere.

  Attributes:
    mark: Another character that occurs nowhere.
  """

  def __init__(self, texts: Iterable[str]):
    used = set[str]().union(*texts)
    free = (x for x in map(chr, _PRIVATE) if x not in used)
    self._free = [*itertools.islice(free, len(used) + 999)]
    if len(self._free) <= len(used):
      raise ValueError(
        'messages: must not contain all private characters of Unicode; leave'
        ' some out.'
      )
    self.mark = self._free.pop()
    self._forward, self._back = {ord(self.mark): self.mark}, dict[int, str]()

  def mask(self, text: str) -> '_Content':
    """Returns a text with its characters replaced, except spaces."""
    for i in {*map(ord, text)} - self._forward.keys():
      if not chr(i).isspace():
        self._forward[i] = self._free.pop()
        self._back[ord(self._forward[i])] = chr(i)
    return self.wrap(text.translate(self._forward))

  def unmask(self, text: str) -> str:
    """Returns a text with its own characters."""
    return text.translate(self._back)

  def wrap(self, text: str) -> '_Content':
    """Returns a text of masked and other characters for a template."""
    content = _Content(text)
    content.mask = self
    return content

  def align(self, text: str, parts: Iterable[str]) -> '_Content':
    """Joins a part for each character of a text, masked where that is."""
    pairs = zip(str.__iter__(text), parts, strict=True)
    return self.wrap(
      ''.join(self.mask(y) if ord(x) in self._back else y for x, y in pairs)
    )


class _Content(str):
  """A text in a template: masked characters of messages, and others.

  Methods answer as those of the unmasked text, and results stay masked.
  """

  __slots__ = ('mask',)
  mask: Mask

  def __str__(self) -> str:
    # Filters and tests convert their argument.
    return self

  def __iter__(self):
    return map(self.mask.wrap, str.__iter__(self))

  def __getitem__(self, key):
    return self.mask.wrap(str.__getitem__(self, key))

  def replace(self, old, new, count=-1):
    parts = self.split(old, count) if old else None
    return str.join(new, parts) if parts else str.replace(self, '', new, count)


def _delegate(name: str) -> Callable[..., Any]:
  """Returns a method of `str` for `_Content`."""
  method = getattr(str, name)

  def delegated(self: _Content, *args: Any, **options: Any) -> Any:
    unmask = self.mask.unmask
    text = unmask(self)
    args = (*(unmask(x) if isinstance(x, str) else x for x in args),)
    result = method(text, *args, **options)
    if name in _CASES:
      # Some letters become several.
      is_even = len(result) == len(text)
      return self.mask.align(self, result if is_even else map(method, text))
    if not isinstance(result, str | list | tuple):
      return result
    # Parts of the text, which follow each other.
    gap = (
      len(options.get('sep', *args[:1]) or '') if name.endswith('split') else 0
    )
    find = text.rindex if name == 'removeprefix' else text.index
    parts, end = [], 0
    for part in [result] if isinstance(result, str) else result:
      start = find(part, end)
      parts.append(self[start : start + len(part)])
      end = start + len(part) + gap
    return parts[0] if isinstance(result, str) else type(result)(parts)

  delegated.__name__ = name
  return delegated


_CASES = 'capitalize', 'lower', 'title', 'upper'
_OPERATORS = '__contains__ __eq__ __ge__ __gt__ __hash__ __le__ __lt__ __ne__'
# The sandbox joins texts itself.
for _name in {*_OPERATORS.split(), *_TEXT_METHODS} - {'join', 'replace'}:
  setattr(_Content, _name, _delegate(_name))


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
  """A sandbox whose methods and filters keep masked texts masked."""

  intercepted_binops = frozenset(['+', '*', '%'])

  def __init__(self):
    super().__init__(
      trim_blocks=True,
      lstrip_blocks=True,
      # Constants would be computed before there is a mask.
      optimized=False,
      extensions=[jinja2.ext.loopcontrols, _Generation],
    )
    self.mask: Mask | None = None
    # Also of macros and blocks.
    self.concat = lambda texts: self._wrap(''.join(texts))
    names = 'range', 'dict', 'namespace'
    self.globals = {name: self.globals[name] for name in names}
    self.globals['raise_exception'] = _raise_exception
    self.filters = {
      name: jinja2.filters.FILTERS[name] for name in _FILTERS
    } | dict(
      join=self.join,
      replace=lambda x, *args, **kw: self._replace(self.join([x]), *args, **kw),
      safe=lambda x: x if self.mask else jinja2.filters.do_mark_safe(x),
      string=lambda value: (
        value if isinstance(value, str) else self.join([value])
      ),
      tojson=self._to_json,
    )

  def _generate(self, source: jinja2.nodes.Template, *args, **kwargs) -> str:
    """Compiles a template, with the joins of this environment."""
    return super()._generate(_Joins().visit(source), *args, **kwargs)

  def _wrap(self, value: Any) -> Any:
    """Returns a value; a text, with the methods of masked texts."""
    return self.mask.wrap(value) if self.mask and type(value) is str else value

  def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
    """Returns True for attributes that a template may read."""
    if isinstance(obj, str):
      return attr in _TEXT_METHODS
    return super().is_safe_attribute(obj, attr, value)

  def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
    """Refuses an attribute, also where it is only printed."""
    raise jinja2.exceptions.SecurityError(
      f'access to {attribute!r} of a {type(obj).__name__} is unsafe'
    )

  def wrap_str_format(self, value: Any) -> None:
    """Leaves `str.format` to the allowed names, which lack it."""

  def call(self, context: Any, obj: Any, /, *args, **kwargs) -> Any:
    """Calls a function of a template; methods are those of masked texts."""
    text = getattr(obj, '__self__', None)
    if isinstance(text, str):
      obj = getattr(self._wrap(text), obj.__name__)
    # Jinja mangles the names of these arguments.
    call: Any = super().call
    return self._wrap(call(context, obj, *args, **kwargs))

  def call_binop(
    self, context: Any, operator: str, left: Any, right: Any
  ) -> Any:
    """Computes an operator, whose result stays masked."""
    return self._wrap(super().call_binop(context, operator, left, right))

  def join(self, value: Any, d: str = '', attribute: Any = None) -> str:
    """Joins texts; also the operator `~`."""
    items = [*value]
    if attribute is not None:
      items = map(jinja2.filters.make_attrgetter(self, attribute), items)
    return self._wrap(str.join(str(d), map(str, items)))

  def _replace(self, text: str, old: str, new: str, count: int = -1) -> str:
    """Replaces a text in another."""
    return self._wrap(text.replace(old, new, -1 if count is None else count))

  def _to_json(
    self,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    **options: Any,
  ) -> str:
    """Returns a value as JSON, in the form of transformers' `tojson`."""
    dumps = functools.partial(json.dumps, ensure_ascii=ensure_ascii)
    if self.mask:
      # Escapes are those of the characters behind the masks.
      text = json.dumps(value, ensure_ascii=False, indent=indent, **options)
      parts = (dumps(self.mask.unmask(x))[1:-1] if x > '~' else x for x in text)
      return self.mask.align(text, parts)
    return dumps(value, indent=indent, **options)


class _Joins(jinja2.visitor.NodeTransformer):
  """Replaces the operator `~`, and refuses escapes of HTML."""

  def visit_Concat(self, node: jinja2.nodes.Concat) -> Any:  # noqa: N802
    """Replaces `~` by a call of `_Environment.join`."""
    self.generic_visit(node)
    texts = jinja2.nodes.List(node.nodes, lineno=node.lineno)
    call = jinja2.nodes.Call(lineno=node.lineno)
    call.node = jinja2.nodes.EnvironmentAttribute('join', lineno=node.lineno)
    call.args, call.kwargs = [texts], []
    call.dyn_args = call.dyn_kwargs = None
    return call

  def visit_ScopedEvalContextModifier(self, node: Any) -> Any:  # noqa: N802
    """Refuses escapes of HTML, which the sandbox's own joins do not make."""
    raise jinja2.exceptions.TemplateSyntaxError(
      'autoescape is not supported', node.lineno
    )


class _Generation(jinja2.ext.Extension):
  """The tag `generation` around answers, an extension of transformers."""

  tags = {'generation'}  # noqa: RUF012

  def parse(self, parser: Any) -> Any:
    """Returns the statements inside of the tag."""
    line = next(parser.stream).lineno
    body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
    return jinja2.nodes.Scope(body, lineno=line)
