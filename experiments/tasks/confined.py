"""Confines its own process, runs a program and its tests, and proves success.

`sandbox.run` starts this file as a script, so the file imports only the
standard library. It reads one JSON object from its standard input:

  program     Untrusted Python text.
  tests       Python text that is run after the program, in its module.
  token       Secret of this run.
  readable    Folders and files that may be read.
  cpu_s, memory_bytes, open_files
              Limits.

and writes to the descriptor in its argument: `ready` once it is confined, or
`refused` and the reason; then the token, if every test passes. Later lines may
be written by the program, which does not know the token.

The kernel enforces the limits, not Python, and root is bound too:

- Landlock: only the standard library and its dependencies can be read, neither
  /proc nor files of the user; no file can be written, made or removed.
- seccomp: calls outside `_CALLS` fail with EPERM. There is no socket, no
  new process or thread, no other program, no signal, and no way
  around Landlock (`truncate`, `chmod`, io_uring, ...).
- Limits on processor time, memory and open files.

References: landlock(7), seccomp(2), seccomp_rule_add(3), setrlimit(2).
"""

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import sys
import termios
import traceback
import types

# The name of the program's module: not __main__, so that a program's own
# demonstration does not run.
_NAME = 'answer'

# Of <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38

# System calls of Landlock, the same on every architecture that Python knows.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
# Kinds of access to files that each version of Landlock can forbid.
_ACCESS_KINDS = {1: 13, 2: 14, 3: 15, 4: 15}
_LATEST_ACCESS_KINDS = 16

# Of <seccomp.h>.
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000
_EQUAL, _MASKED = 4, 7

# System calls that Python needs to compute, to import and to print.
_CALLS = """
access brk clock_getres clock_gettime clock_nanosleep close close_range dup dup2
dup3 exit exit_group faccessat faccessat2 fstat fstatfs futex get_robust_list
getcwd getdents64 getegid geteuid getgid getpgid getpid getppid getrandom
getresgid getresuid getrusage gettid gettimeofday getuid lseek lstat madvise
mmap mprotect mremap munmap nanosleep newfstatat pread64 read readlink
readlinkat readv restart_syscall rseq rt_sigaction rt_sigprocmask rt_sigreturn
sched_getaffinity sched_yield set_robust_list sigaltstack stat statx sysinfo
time times uname write writev
""".split()
# Bits of `open` that write, make or shorten a file.
_WRITES = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC
# (call, argument, comparison, value or mask, masked value): calls that are
# allowed for some arguments only. With `fcntl` and `ioctl`, a file can be made
# to send signals to its owner, which may be any process.
_CALLS_IF = [
  ('open', 1, _MASKED, _WRITES, 0),
  ('openat', 2, _MASKED, _WRITES, 0),
  # Limits can be read, but not set, not even those of other processes.
  ('prlimit64', 2, _EQUAL, 0, 0),
  *(
    ('fcntl', 1, _EQUAL, command, 0)
    for command in (
      fcntl.F_DUPFD,
      fcntl.F_DUPFD_CLOEXEC,
      fcntl.F_GETFD,
      fcntl.F_SETFD,
      fcntl.F_GETFL,
    )
  ),
  *(
    ('ioctl', 1, _EQUAL, request, 0)
    for request in (termios.TCGETS, termios.FIOCLEX, termios.FIONCLEX)
  ),
]


class _Comparison(ctypes.Structure):
  """scmp_arg_cmp of <seccomp.h>."""

  _fields_ = [
    ('arg', ctypes.c_uint),
    ('op', ctypes.c_int),
    ('a', ctypes.c_uint64),
    ('b', ctypes.c_uint64),
  ]


class _PathBeneath(ctypes.Structure):
  """landlock_path_beneath_attr of <linux/landlock.h>."""

  _pack_ = 1
  _fields_ = [('access', ctypes.c_uint64), ('folder', ctypes.c_int32)]


class Refused(Exception):  # noqa: N818 (the parent prints it as an answer)
  """A reason for which this machine cannot confine the process."""


def _limit(cpu_s: int, memory_bytes: int, open_files: int) -> None:
  """Limits processor time, memory and open files of the process."""
  for kind, soft, hard in (
    # The soft limit sends a signal that can be caught, the hard one kills.
    (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
    (resource.RLIMIT_AS, memory_bytes, memory_bytes),
    (resource.RLIMIT_NOFILE, open_files, open_files),
    (resource.RLIMIT_FSIZE, 0, 0),
    (resource.RLIMIT_CORE, 0, 0),
  ):
    try:
      resource.setrlimit(kind, (soft, hard))
    except (OSError, ValueError) as e:
      raise Refused(f'limits cannot be set: {e}') from None


def _set_process_option(libc: ctypes.CDLL, option: int, value: int) -> int:
  """Calls prctl(2), with 0 for the unused arguments; 0 means success."""
  unused = (0, 0, 0)
  return libc.prctl(option, value, *unused)


def _add_readable(
  libc: ctypes.CDLL, *, ruleset: int, access: int, descriptor: int
) -> int:
  """Calls landlock_add_rule(2) for an opened path; 0 means success."""
  rule = ctypes.byref(_PathBeneath(access, descriptor))
  arguments = (ruleset, _RULE_PATH_BENEATH, rule, 0)
  return libc.syscall(_ADD_RULE, *arguments)


def _forbid_files(libc: ctypes.CDLL, readable: list[str]) -> None:
  """Forbids all access to files but reading some of them."""
  version = libc.syscall(_CREATE_RULESET, None, 0, _RULESET_VERSION)
  if version < 1:
    raise Refused('its kernel has no Landlock')
  count = _ACCESS_KINDS.get(version, _LATEST_ACCESS_KINDS)
  access_mask = ctypes.c_uint64((1 << count) - 1)
  rules = libc.syscall(_CREATE_RULESET, ctypes.byref(access_mask), 8, 0)
  if rules < 0:
    raise Refused('Landlock rejects the ruleset')
  for path in readable:
    try:
      descriptor = os.open(path, os.O_PATH)
    except OSError:
      # Not every system has all of these paths.
      continue
    access = _READ_FILE | (_READ_FOLDER if os.path.isdir(path) else 0)
    if _add_readable(libc, ruleset=rules, access=access, descriptor=descriptor):
      raise Refused(f'Landlock rejects the rule for {path}')
    os.close(descriptor)
  if libc.syscall(_RESTRICT_SELF, rules, 0):
    raise Refused('Landlock cannot be applied')
  os.close(rules)


def _forbid_calls() -> None:
  """Forbids all system calls but those of `_CALLS` and `_CALLS_IF`."""
  try:
    seccomp = ctypes.CDLL('libseccomp.so.2')
  except OSError:
    raise Refused('it has no libseccomp.so.2') from None
  seccomp.seccomp_init.restype = ctypes.c_void_p
  seccomp.seccomp_init.argtypes = [ctypes.c_uint32]
  seccomp.seccomp_load.argtypes = [ctypes.c_void_p]
  seccomp.seccomp_rule_add_array.argtypes = [
    ctypes.c_void_p,
    ctypes.c_uint32,
    ctypes.c_int,
    ctypes.c_uint,
    ctypes.POINTER(_Comparison),
  ]
  # Calls of another architecture than the native one end the process.
  rules = seccomp.seccomp_init(_FAIL | errno.EPERM)

  def allow(name, *comparisons):
    number = seccomp.seccomp_syscall_resolve_name(name.encode())
    # Not every architecture has every call.
    if number < 0:
      return
    count = len(comparisons)
    array = (_Comparison * count)(*comparisons)
    arguments = (rules, _ALLOW, number, count, array)
    if seccomp.seccomp_rule_add_array(*arguments):
      raise Refused(f'seccomp rejects the rule for {name}')

  for name in _CALLS:
    allow(name)
  for name, *comparison in _CALLS_IF:
    allow(name, _Comparison(*comparison))
  if seccomp.seccomp_load(rules):
    raise Refused('its kernel rejects the seccomp filter')


def _verify(libc: ctypes.CDLL) -> None:
  """Tries calls that must fail, for a kernel may report more than it does."""

  def fork():
    if not os.fork():
      os._exit(0)

  def connect():
    if libc.socket(1, 1, 0) < 0:
      raise PermissionError

  for name, attempt in {
    'files can be read': lambda: os.open('/', os.O_RDONLY),
    'files can be written': lambda: os.open('file', os.O_WRONLY | os.O_CREAT),
    'processes can be made': fork,
    'sockets can be made': connect,
    'signals can be sent': lambda: os.kill(os.getppid(), 0),
  }.items():
    try:
      attempt()
    except PermissionError:
      continue
    except OSError as e:
      raise Refused(f'{name}, or fail with another error: {e}') from None
    raise Refused(f'{name} in spite of the confinement')


def confine(limits: dict[str, int], readable: list[str]) -> None:
  """Confines this process irrevocably."""
  libc = ctypes.CDLL(None)
  # The process must not outlive its parent.
  _set_process_option(libc, _PR_SET_PDEATHSIG, signal.SIGKILL)
  if _set_process_option(libc, _PR_SET_NO_NEW_PRIVS, 1):
    raise Refused('privileges cannot be dropped')
  _limit(**limits)
  _forbid_files(libc, readable)
  _forbid_calls()
  _verify(libc)


def main() -> None:
  """Confines the process, runs the program and its tests, writes the proof."""
  # Bound before the program runs, which may replace these names.
  leave, write, run, proof = os._exit, os.write, exec, int(sys.argv[1])
  fields = json.load(sys.stdin)
  token = fields['token'].encode()
  nothing = os.open(os.devnull, os.O_RDONLY)
  os.dup2(nothing, 0)
  os.close(nothing)
  limits = {
    name: fields[name] for name in ('cpu_s', 'memory_bytes', 'open_files')
  }
  try:
    confine(limits, fields['readable'])
  except Refused as e:
    write(proof, f'refused {e}\n'.encode())
    leave(1)
  write(proof, b'ready\n')
  module = types.ModuleType(_NAME)
  sys.modules[_NAME] = module
  try:
    # Asserts stay, whatever flags Python was started with.
    tests = compile(fields['tests'], '<tests>', 'exec', optimize=0)
    program = compile(fields['program'], '<program>', 'exec', optimize=0)
    run(program, module.__dict__)
    run(tests, module.__dict__)
    write(proof, token)
  except BaseException as error:
    # Includes SystemExit: a program that exits before its tests fails.
    try:
      traceback.print_exc()
    except BaseException:
      # From 3.13 on it calls builtins, which the program may have replaced.
      os.write(1, f'{type(error).__name__}: {error}'.encode())
    leave(1)
  # No exit handler of the program runs.
  leave(0)


if __name__ == '__main__':
  main()
