"""Shared code of the commands: flags, error messages and exit codes.

A mistake of the user ends a command with one sentence and exit code 2.
"""

import errno
import importlib
import importlib.metadata
import importlib.util
import logging as messages
import math
import os
import pathlib
import re
import select
import signal
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any

import tqdm
from absl import app, flags, logging

import cascades
from cascades import compilation, files
from cascades.arguments import Declared, Option, options_of

_DEBUG = flags.DEFINE_bool('debug', False, 'Shows the traceback of an error.')

_CACHE = flags.DEFINE_bool(
  'compilation_cache',
  True,
  "Keeps compiled programs in the user's cache folder for later processes.",
)

# Flags that the functions below define belong to the command that calls them,
# whose --help shows them.
flags.disclaim_key_flags()


def define_dtype() -> None:
  """Defines the flag of commands that load models by name."""
  _define_enum(
    'dtype',
    None,
    ['bfloat16', 'float32', 'int8'],
    'Dtype of the parameters; int8 rounds matrices to eight bits. By default'
    ' the dtype in config.json, or else the stored dtype.',
  )


# The last ends a command after an error; that of `multihost` waits for nobody.
exits: list[Callable[[int], Any]] = [sys.exit]


def define_import() -> None:
  """Defines the flag of commands that take names; `run` imports its values."""
  if 'import' not in flags.FLAGS:
    flags.DEFINE_multi_string(
      'import',
      [],
      'Module or Python file that registers methods, drafters, tasks or others'
      ' of your own; can be given several times.',
    )


def imports() -> list[str]:
  """Returns the modules and files of --import."""
  return flags.FLAGS['import'].value if 'import' in flags.FLAGS else []


def import_module(name: str) -> None:
  """Imports a module, or a file under the name that `import` would give it."""
  path = pathlib.Path(name)
  if path.suffix == '.py' and not path.is_file():
    raise ValueError(f'import: there is no file {name}; create it.')
  try:
    if path.suffix == '.py':
      load_config_module(path, path.stem)
    else:
      importlib.import_module(name)
  # A module of the user can raise any exception.
  except Exception as error:
    raise ValueError(
      f'import: {name} cannot be imported ({type(error).__name__}:'
      f' {one_line(error).rstrip(".")}); correct it or install what it needs.'
    ) from error


def _import_first(argv: list[str]) -> None:
  """Imports the values of --import before flags and configs name entries."""
  words = iter(flags.FLAGS.read_flags_from_files(argv[1:], force_gnu=False))
  for word in words:
    name, equals, value = word.lstrip('-').partition('=')
    if word.startswith('-') and name == 'import':
      # A module may import JAX, which reads the environment once.
      compilation.enable_cache()
      import_module(value if equals else next(words, ''))


_DEFINE = {
  bool: flags.DEFINE_bool,
  float: flags.DEFINE_float,
  int: flags.DEFINE_integer,
  str: flags.DEFINE_string,
}


def define_options(declared: type[Declared] | Mapping[str, Option]) -> None:
  """Defines a flag for each option of a class, or of a mapping by name."""
  if isinstance(declared, type):
    declared = options_of(declared)
  for name, option in declared.items():
    if option.choices:
      _define_enum(name, option.default, list(option.choices), option.help)
    elif name not in flags.FLAGS:
      _DEFINE[option.kind](name, option.default, option.help)


def _define_enum(
  name: str, default: str | None, values: list[str], help_text: str
) -> None:
  """Defines a flag, unless another command of the process has defined it."""
  if name not in flags.FLAGS:
    flags.DEFINE_enum(name, default, values, help_text)


# Errors whose message is written for the user. Other errors are bugs, and keep
# their traceback.
_MISTAKES = (ValueError, OSError, flags.Error, app.UsageError)
# ml_collections raises further errors for a field that a config lacks.
_FLAG_MISTAKES = (*_MISTAKES, AttributeError, KeyError, TypeError)


class StoppedError(Exception):
  """The user stopped the command; the message says how to resume."""


def one_line(error: Exception) -> str:
  """Returns the message of an error on one line, or its type if it is empty."""
  return ' '.join(str(error).split()) or type(error).__name__


# config_flags puts this text before the traceback of an error of a config.
_PARSING = ': Error whilst parsing config file:'


def _config_message(error: Exception) -> str | None:
  """Returns the message for an error of a config's code, else None.

  config_flags raises an error with the traceback in its message, and absl
  raises another for that error. The error of the config is in their context.
  """
  flag, parsing, _ = str(error).partition(_PARSING)
  cause = error.__context__ and error.__context__.__context__
  if not parsing or cause is None:
    return None
  message = f'{flag}: {one_line(cause)}'
  if isinstance(cause, TypeError):
    # The message was not written for the user.
    *_, frame = traceback.extract_tb(cause.__traceback__)
    message += f' ({frame.filename}, line {frame.lineno}); correct the config.'
  return message


def _sentence(error: Exception) -> str:
  """Returns the sentence for a mistake of the user."""
  if message := _config_message(error):
    return message
  if isinstance(error, OSError) and error.filename and error.strerror:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = ' Free space, then run it again.' if is_full else ''
    return f'{error.filename}: {error.strerror}.{advice}'
  if isinstance(error, AttributeError | KeyError):
    return _unknown_field(error) or one_line(error)
  message = one_line(error)
  is_unknown = re.search(r' is not known;.* Choose from', message)
  if 'import' in flags.FLAGS and is_unknown and '--import' not in message:
    message = message.removesuffix('.')
    return f'{message}, or give the module that registers it with --import.'
  return message


def _unknown_field(error: Exception) -> str | None:
  """Returns the message for a flag of a field that a config lacks."""
  # ml_collections quotes the name once or twice, and adds a line.
  text = str(error).replace('\\n', ' ').replace('\\', '')
  near = r'Did you mean "(\w+)" instead of "\w+"\?'
  if not (match := re.fullmatch(rf'\W*(\w+)\W*(?:{near})?\W*', text)):
    return None
  name, near = match.groups()
  advice = f'did you mean {near}?' if near else 'see docs/configs.md.'
  return f'config: {name} is not a field; {advice}'


def _quietly(
  fn: Callable[[list[str]], Any],
  argv: list[str],
  mistakes: tuple[type[Exception], ...] = _MISTAKES,
) -> Any:
  """Calls `fn(argv)`; exits with one sentence on stderr for an error."""
  # By default absl shows the information logs of every library.
  logging.set_verbosity(logging.ERROR)
  try:
    result = fn(argv)
    sys.stdout.flush()
    return result
  except mistakes as e:
    if isinstance(e, BrokenPipeError) and _is_output_closed():
      # The interpreter flushes stdout again when it exits.
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      sys.exit(128 + signal.SIGPIPE)
    # Flags may not be parsed yet, which plain attribute access insists on.
    if flags.FLAGS['debug'].value:
      raise
    print(f'error: {files.sentence(_sentence(e))}', file=sys.stderr)
    _end(2)
  except StoppedError as e:
    print(files.sentence(_sentence(e)), file=sys.stderr)
    _end(130)
  except KeyboardInterrupt:
    _end(130)
  except Exception as e:
    if flags.FLAGS['debug'].value:
      raise
    print(f'error: {files.sentence(_bug(e))}', file=sys.stderr)
    _end(1)


def _end(code: int) -> None:
  """Ends the process by the last of `exits`."""
  sys.stdout.flush()
  sys.stderr.flush()
  exits[-1](code)


def _is_output_closed() -> bool:
  """Returns True if stdout is a pipe that nobody reads any more."""
  poll = select.poll()
  poll.register(sys.stdout, select.POLLOUT)
  return any(events & select.POLLERR for _, events in poll.poll(0))


def _bug(error: Exception) -> str:
  """Writes the traceback of a bug to a file; returns the message for it."""
  text = files.without_secrets(''.join(traceback.format_exception(error)))
  with tempfile.NamedTemporaryFile(
    'w', prefix='cascades-', suffix='.txt', delete=False, encoding='utf-8'
  ) as file:
    file.write(text)
  return (
    f'{type(error).__name__}: {error}. This is a bug in cascades; please'
    f' open an issue with the traceback in {file.name}.'
  )


def run(
  main: Callable[[], Any],
  declared: Callable[[], Mapping[str, Option]] | None = None,
) -> None:
  """Runs `main()` under absl and exits; arguments other than flags fail.

  A flag is defined for each option of `declared()`, modules of --import
  included.
  """

  def define(argv):
    if 'import' in flags.FLAGS:
      _import_first(argv)
    if declared:
      define_options(declared())

  def without_arguments(argv):
    if len(argv) > 1:
      raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
    _show_messages()
    if _CACHE.value:
      compilation.enable_cache()
    else:
      os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'
      if 'jax' in sys.modules:
        sys.modules['jax'].config.update('jax_enable_compilation_cache', False)
    main()

  # ml_collections reads sys.argv, where a config must precede its fields.
  sys.argv[1:] = sorted(
    sys.argv[1:], key=lambda word: not word.startswith('--config=')
  )
  # Here, so that --help of the command shows the flags.
  _quietly(define, sys.argv)
  app.run(
    lambda argv: _quietly(without_arguments, argv),
    flags_parser=lambda argv: _quietly(flags.FLAGS, argv, _FLAG_MISTAKES),
  )


def require_config(config: Any, example: str) -> None:
  """Checks that --config names a file."""
  if config is None:
    raise app.UsageError(
      f'config: no file is given; give one, such as --config={example}.'
    )


def load_config_module(
  path: str | pathlib.Path, name: str = ''
) -> types.ModuleType:
  """Runs a Python file; with a name, `import NAME` gives the same module."""
  spec = importlib.util.spec_from_file_location(name or '_config', path)
  module = importlib.util.module_from_spec(spec)
  if name:
    before = sys.modules.setdefault(name, module)
    if getattr(before, '__file__', None) != module.__file__:
      raise ValueError(f'import: {name} is another module; rename {path}.')
  try:
    spec.loader.exec_module(module)
  except BaseException:
    sys.modules.pop(name, None)
    raise
  return module


def make_folder(workdir: pathlib.Path, option: str = 'workdir') -> None:
  """Creates a folder, and checks that it can be written."""
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=workdir):
      pass
  except OSError as e:
    raise ValueError(
      f'{option}: {workdir} cannot be written ({e.strerror}); choose another'
      f' --{option}.'
    ) from None


_LOGGER = messages.getLogger('cascades')
# Says on stderr, in a line, what a command does next.
say = _LOGGER.info


class _LinesAboveBars(messages.Handler):
  """Prints messages on stderr, above the progress bars."""

  def emit(self, record: messages.LogRecord) -> None:
    """Prints a message."""
    tqdm.tqdm.write(files.printable(record.getMessage()), file=sys.stderr)


def _show_messages() -> None:
  """Shows messages of the library; with --quiet its warnings only."""
  is_quiet = 'quiet' in flags.FLAGS and flags.FLAGS['quiet'].value
  _LOGGER.setLevel(messages.WARNING if is_quiet else messages.INFO)
  _LOGGER.addHandler(_LinesAboveBars())
  # absl prints messages of all loggers.
  _LOGGER.propagate = False
  if not sys.stderr.isatty():
    # Bars of other libraries are one long line in a file.
    for name in ('HF_HUB', 'HF_DATASETS'):
      os.environ.setdefault(f'{name}_DISABLE_PROGRESS_BARS', '1')


class _LogFile:
  """Prints the states of a progress bar on stderr, each in a line."""

  _last = ''

  def write(self, text: str) -> None:
    """Prints a state, which tqdm writes between returns and spaces."""
    line = text.strip()
    if line not in ('', self._last):
      print(line, file=sys.stderr, flush=True)
      self._last = line


def progress(
  total: int, description: str, quiet: bool = False, initial: int = 0
) -> tqdm.tqdm:
  """Returns a progress bar on stderr, or some 20 lines without a terminal."""
  options: dict[str, Any] = dict(total=total, disable=quiet, initial=initial)
  if not sys.stderr.isatty():
    form = '{desc}{n_fmt} of {total_fmt}, {elapsed}{postfix}'
    options |= dict(file=_LogFile(), bar_format=form)
    # From one line to the next, at least: steps and seconds.
    options |= dict(miniters=total / 20, mininterval=10, maxinterval=math.inf)
  return tqdm.tqdm(desc=f'{description}: ', **options)


def versions() -> dict[str, str]:
  """Returns the versions of packages that a result depends on."""
  names = ('gemma', 'jax', 'jaxlib', 'flax', 'numpy')
  versions = {name: importlib.metadata.version(name) for name in names}
  return {'cascades': cascades.__version__} | versions
