"""Shared code of the commands: flags, error messages and exit codes.

A mistake of the user ends a command with one sentence and exit code 2.
"""

import contextlib
import errno
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import logging as messages
import math
import os
import pathlib
import re
import signal
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tqdm
from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

import cascades
from cascades import compilation, files
from cascades.arguments import Option

flags.DEFINE_bool('debug', False, 'Shows the traceback of an error.')
flags.DEFINE_multi_string(
  'import',
  [],
  'Module or Python file that registers methods, drafters, tasks or others of'
  ' your own; can be given several times.',
)

# Flags that the functions below define belong to the command that calls them,
# whose --help shows them.
flags.disclaim_key_flags()

# The last ends a command after an error; that of `multihost` waits for nobody.
exits: list[Callable[[int], Any]] = [sys.exit]


class _ConfigParser(flags.ArgumentParser):
  """Runs the file of a config once, and keeps its module."""

  module: types.ModuleType

  def parse(self, argument: str) -> ConfigDict:
    """Returns the config of a path, or of a path, a colon and an argument."""
    path, colon, word = argument.partition(':')
    if not pathlib.Path(path).is_file():
      raise ValueError(f'there is no file {path!r}; give another.')
    words = [word] * bool(colon)
    with _named_errors(path):
      self.module = load_config_module(path)
      try:
        inspect.signature(self.module.get_config).bind(*words)
      except TypeError:
        takes = 'takes no' if colon else 'needs an'
        raise ValueError(f'{path} {takes} argument after a colon.') from None
      return self.module.get_config(*words).lock()


def define_config(example: str) -> None:
  """Defines the flags of a command that runs a config."""
  config_flags.DEFINE_config_file(
    'config',
    None,
    f'Config, such as {example}; after a colon its argument.'
    ' --config.FIELD=VALUE sets a field.',
  )
  # That of ml_collections hides the errors of a file behind tracebacks.
  flags.FLAGS['config'].parser = _ConfigParser()
  flags.DEFINE_string(
    'workdir', None, 'Folder of results; by default runs/<name of the config>.'
  )


def read_config() -> tuple[str, types.ModuleType, ConfigDict, dict[str, Any]]:
  """Returns --config, its module, its fields, and those of --config.FIELD."""
  flag: Any = flags.FLAGS['config']
  if flag.value is None:
    raise ValueError(
      'config: no file is given; give one, such as those of configs/ that'
      ' --help names.'
    )
  name = config_flags.get_config_filename(flag)
  overrides = config_flags.get_override_values(flag)
  return name, flag.parser.module, flag.value, overrides


def _parse_flags(argv: list[str]) -> list[str]:
  """Parses flags; ml_collections has several errors for an unknown field."""
  try:
    return flags.FLAGS(argv)
  except (AttributeError, KeyError, TypeError) as error:
    # It quotes the name once or twice, and adds a line.
    text = str(error).replace('\\n', ' ').replace('\\', '')
    near = r'Did you mean "(\w+)" instead of "\w+"\?'
    if not (match := re.fullmatch(rf'\W*(\w+)\W*(?:{near})?\W*', text)):
      raise ValueError(f'config: {one_line(error)}') from error
    name, near = match.groups()
    advice = f'did you mean {near}?' if near else 'see docs/configs.md.'
    raise ValueError(f'config: {name} is not a field; {advice}') from error


@contextlib.contextmanager
def _named_errors(path: str) -> Iterator[None]:
  """Names a file of the user in errors other than its sentences."""
  try:
    yield
  except ValueError:
    raise
  # Code of the user can raise any exception.
  except Exception as error:
    *_, frame = traceback.extract_tb(error.__traceback__)
    raise ValueError(
      f'{path} cannot be imported ({type(error).__name__}:'
      f' {one_line(error).rstrip(".")}; {frame.filename}, line'
      f' {frame.lineno}); correct it or install what it needs.'
    ) from error


def imports() -> list[str]:
  """Returns the modules and files of --import."""
  return flags.FLAGS['import'].value


def import_module(name: str) -> None:
  """Imports a module, or a file under the name that `import` would give it."""
  path = pathlib.Path(name)
  if path.suffix == '.py' and not path.is_file():
    raise ValueError(f'import: there is no file {name}; create it.')
  with _named_errors(f'import: {name}'):
    if path.suffix == '.py':
      load_config_module(path, path.stem)
    else:
      importlib.import_module(name)


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


def define_options(declared: Mapping[str, Option]) -> None:
  """Defines a flag for each option."""
  for name, option in declared.items():
    if name in flags.FLAGS:
      continue
    if option.choices:
      choices = list(option.choices)
      flags.DEFINE_enum(name, option.default, choices, option.help)
    else:
      _DEFINE[option.kind](name, option.default, option.help)


# Errors whose message is written for the user. Other errors are bugs, and keep
# their traceback.
_MISTAKES = (ValueError, OSError, flags.Error, app.UsageError)


class StoppedError(Exception):
  """The user stopped the command; the message says how to resume."""


def one_line(error: Exception) -> str:
  """Returns the message of an error on one line, or its type if it is empty."""
  return ' '.join(str(error).split()) or type(error).__name__


def _sentence(error: Exception) -> str:
  """Returns the sentence for a mistake of the user."""
  if isinstance(error, OSError) and error.filename and error.strerror:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = ' Free space, then run it again.' if is_full else ''
    return f'{error.filename}: {error.strerror}.{advice}'
  message = one_line(error)
  if re.search(r' is not known;.* Choose from', message):
    message = message.removesuffix('.')
    return f'{message}, or give the module that registers it with --import.'
  return message


def _quietly(fn: Callable[[list[str]], Any], argv: list[str]) -> Any:
  """Calls `fn(argv)`; exits with one sentence on stderr for a mistake."""
  # By default absl shows the information logs of every library.
  logging.set_verbosity(logging.ERROR)
  try:
    result = fn(argv)
    sys.stdout.flush()
    return result
  except BrokenPipeError:
    # Nobody reads the output, which the interpreter flushes again at its exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(128 + signal.SIGPIPE)
  except _MISTAKES as e:
    # Flags may not be parsed yet, which plain attribute access insists on.
    if flags.FLAGS['debug'].value:
      raise
    print(f'error: {files.sentence(_sentence(e))}', file=sys.stderr)
    _end(2)
  except StoppedError as e:
    print(files.sentence(str(e)), file=sys.stderr)
    _end(130)
  except KeyboardInterrupt:
    _end(130)
  except Exception:
    for line in files.without_secrets(traceback.format_exc()).splitlines():
      print(files.printable(line), file=sys.stderr)
    _end(1)


def _end(code: int) -> None:
  """Ends the process by the last of `exits`."""
  sys.stdout.flush()
  sys.stderr.flush()
  exits[-1](code)


def run(
  main: Callable[[], Any],
  declared: Callable[[], Mapping[str, Option]] | None = None,
) -> None:
  """Runs `main()` under absl and exits; arguments other than flags fail.

  A flag is defined for each option of `declared()`, modules of --import
  included.
  """

  def define(argv):
    _import_first(argv)
    if declared:
      define_options(declared())

  def without_arguments(argv):
    if len(argv) > 1:
      raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
    _show_messages()
    compilation.enable_cache()
    main()

  # ml_collections reads sys.argv, where a config must precede its fields.
  sys.argv[1:] = sorted(
    sys.argv[1:], key=lambda word: not word.startswith('--config=')
  )
  # Here, so that --help of the command shows the flags.
  flags.declare_key_flag('import')
  _quietly(define, sys.argv)
  app.run(
    lambda argv: _quietly(without_arguments, argv),
    flags_parser=lambda argv: _quietly(_parse_flags, argv),
  )


def load_config_module(
  path: str | pathlib.Path, name: str = ''
) -> types.ModuleType:
  """Runs a Python file; with a name, `import NAME` gives the same module."""
  loader = importlib.machinery.SourceFileLoader(name or '_config', str(path))
  spec = importlib.util.spec_from_file_location(
    loader.name, path, loader=loader
  )
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


def make_folder(folder: pathlib.Path) -> None:
  """Creates a folder, and checks that it can be written."""
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
  except OSError as e:
    raise ValueError(
      f'folder: {folder} cannot be written ({e.strerror}); choose another.'
    ) from None


_LOGGER = messages.getLogger('cascades')
# Says on stderr, in a line, what a command does next.
say = _LOGGER.info


def _show_messages() -> None:
  """Shows messages of the library; with --quiet its warnings only."""
  is_quiet = 'quiet' in flags.FLAGS and flags.FLAGS['quiet'].value
  _LOGGER.setLevel(messages.WARNING if is_quiet else messages.INFO)
  handler = messages.Handler()
  # Above the progress bars.
  handler.emit = lambda record: tqdm.tqdm.write(
    files.printable(record.getMessage()), file=sys.stderr
  )
  _LOGGER.addHandler(handler)
  # absl prints messages of all loggers.
  _LOGGER.propagate = False


class _LogFile:
  """Prints each state of a progress bar on stderr in a line."""

  def write(self, text: str) -> None:
    """Prints a state, which tqdm writes between returns and spaces."""
    if line := text.strip():
      print(line, file=sys.stderr, flush=True)


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
