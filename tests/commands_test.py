"""Mistakes of a command are one sentence, and exit code 2."""

import math
import re
import signal
import subprocess
import sys
import types

import launching
import pandas as pd
import pytest
import small
import tiers

from cascades.sampler.scoring import Explanation
from experiments import records, sample
from experiments.analysis import runs

_USUAL = {
  'accelerator': ['--tiny', '--workdir={}/w'],
  'audit': ['--workdir={}/w'],
  'export': ['--model=tiny-verifier'],
  'predict': [],
  'report': [],
  'sample': [],
  'sweep': ['--workdir={}/w', '--config=configs/quickstart.py'],
}
# Flags, of which the last of a name counts, and what is said of them.
_MISTAKES = {
  'accelerator': [
    (['--phases=speeds'], 'flag --phases=speeds: value should be one of'),
    (['--workdir=/dev/null/x'], 'folder: /dev/null/x cannot be written'),
  ],
  'audit': [
    ([], 'method: no name is given; give one'),
    (['--method=tokenv3'], 'did you mean'),
    (['--method=chow', '--lenience=much'], 'lenience: could not convert'),
    (['--method=chow', '--trace=x', '--function=y:z'], 'cannot be combined'),
  ],
  'export': [
    (['--folder=/proc'], 'folder: /proc cannot be written'),
    ([], 'model, folder: both must be given'),
  ],
  'predict': [
    ([], 'prompt: give prompts by one of --data=mine.jsonl, --task='),
    (['--prompt=x', '--task=numerals'], 'prompt: give prompts by one of'),
    (['--task=numeral'], "did you mean 'numerals'"),
    (['--data={}/none.jsonl'], 'none.jsonl'),
    (['--prompt=x', '--method=tokenv3'], 'did you mean'),
    (['--prompt=x', '--gamma=0'], 'flag --gamma=0: 0 is not a positive'),
    (['--prompt=x', '--costs={}/none'], '/none: No such file'),
    (['--prompt=x', '--figure=x.pdf'], 'flag --figure=x.pdf: no .svg or .png'),
    (
      ['--prompt=x', '--drafter=ngram', '--method=chow'],
      'must be a model or self:N',
    ),
    (['--prompt=x', '--gamma=4000'], 'do not fit into cache_length 4096'),
  ],
  'report': [
    (['--workdir={}'], 'has no records; run experiments.sweep first'),
    (['--workdir={}/none'], 'there is no folder'),
    (['--wrkdir={}'], "Unknown command line flag 'wrkdir'"),
    (['--nodebug'], 'workdir: no folder is given; give the folder'),
    (['workdir'], "'workdir' is not a flag"),
  ],
  'sample': [
    ([], "prompt: no text is given; give one, such as --prompt='Hello'."),
    (['--prompt=x', '--import=nowhere.py'], 'there is no file nowhere.py'),
    (['--prompt=x', '--import=no_module'], '(ModuleNotFoundError: No module'),
    (['--prompt=x', '--method=a'], 'module that registers it with --import'),
    (['--prompt=x', '--method=contrastive'], 'lenience: must be given for'),
    (
      ['--prompt=x', '--explain', '--drafter=ngram', '--lenience=0'],
      'is not a language model',
    ),
    (['--prompt=x', '--system=y'], 'chat: apply_chat_template is not supp'),
  ],
  'sweep': [
    (['--config.gama=3'], 'config: gama is not a field; did you mean gamma?'),
    (['--config.ray.cpu=x'], 'cpu is not a field; did you mean cpus?'),
    (['--config.x=3'], 'config: x is not a field; see docs/configs.md.'),
    (['--config.gamma=x'], 'gamma: must be '),
    (['--config.method=token_v33'], "did you mean 'token_v3'"),
    (['--config.tasks=("gsm9k",)'], "did you mean 'gsm8k'"),
    (['--config.tasks=()'], 'tasks: no task is given; give one or more'),
    (['--workdir=gs://x'], 'workdir: must be a local folder, got gs://x'),
    (['--config=configs/nothing.py'], 'nothing.py'),
    (['--distributed=here'], 'distributed: must be auto or HOST:PORT,PROCESS'),
    (['--distributed=here:1,2,2'], 'distributed: here:1,2,2 cannot be joined'),
    (['--distributed=auto'], 'distributed: auto cannot be joined'),
  ],
}


@pytest.mark.parametrize(
  ('command', 'flags', 'said'),
  [(name, *case) for name, cases in _MISTAKES.items() for case in cases],
)
def test_a_mistake_is_one_sentence(command, flags, said, tmp_path):
  (tmp_path / 'records').mkdir()
  given = [flag.format(tmp_path) for flag in _USUAL[command] + flags]
  done = launching.run(f'experiments.{command}', *given)
  assert (done.returncode, done.stdout) == (2, '')
  *steps, sentence = done.stderr.splitlines()
  assert sentence.startswith('error: ')
  assert said in sentence
  # What the models must be loaded for.
  assert all(line.startswith(('loading tiny-', 'compil')) for line in steps)
  after = 'is not a language', 'chat:', 'must be a model', 'do not fit'
  assert not steps or said.startswith(after)
  # Nothing was written.
  assert [*tmp_path.rglob('*')] == [tmp_path / 'records']


@pytest.mark.slow
def test_a_sweep_says_each_step_in_a_line(tmp_path):
  quiet, *flags = small.flags(tmp_path, num_examples=4, shard_size=4)
  done = launching.run('experiments.sweep', *flags)
  assert done.returncode == 0, done.stderr
  assert '\r' not in done.stderr
  lines = done.stderr.splitlines()
  assert len(lines) < 30
  assert max(map(len, lines)) <= 240
  steps = iter(lines)
  for step in (
    *(f'loading {name}' for name in small.pair()),
    *('measuring unit costs', '0 of 2 points: 0 of ', '2 of 2 points: '),
    *('timing points', 'drawing the page'),
  ):
    assert any(line.startswith(step) for line in steps), (step, lines)
  done = launching.run('experiments.sweep', quiet, *flags)
  assert done.returncode == 0
  assert not re.search('loading|measuring|drawing', done.stderr)


@pytest.mark.parametrize('size', [1, 1_000_000])
def test_a_command_ends_quietly_if_nobody_reads_its_output(size):
  code = f"from experiments import cli\ncli.run(lambda: print('a' * {size}))"
  pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  process = subprocess.Popen([sys.executable, '-c', code], **pipes)
  process.stdout.close()
  assert process.stderr.read() == b''
  assert process.wait() == 128 + signal.SIGPIPE


def test_a_mistake_of_ours_is_a_traceback_without_secrets():
  code = (
    'from experiments import cli\n'
    "def fail(): raise TypeError('\x1b http://me:word@x.org')\n"
    'cli.run(fail)'
  )
  done = launching.python('-c', code)
  assert done.returncode == 1
  assert done.stderr.startswith('Traceback')
  assert 'TypeError: ' in done.stderr
  assert '\x1b' not in done.stderr
  assert 'word@' not in done.stderr


_PROMPT = '--prompt=The number 4302 in words:'


@pytest.mark.parametrize(
  'command', 'sample sweep train benchmark export predict'.split()
)
def test_help_comes_without_importing_a_model_library(command):
  module = f'experiments.{command}'
  done = launching.python('-X', 'importtime', '-m', module, '--help')
  flags = {'sample': 'prompt method gamma stop_below dtype', 'export': 'dtype'}
  flags['predict'] = 'verifier task gamma temperature figure'
  for flag in flags.get(command, 'config workdir').split():
    assert f'--{flag}: ' in done.stdout
  imported = {line.split('|')[-1].strip() for line in done.stderr.split('\n')}
  assert 'absl.flags' in imported
  assert not {'gemma', 'tensorflow', 'orbax.checkpoint'} & imported
  # Options of a drafter are declared beside its computation.
  assert command == 'sample' or 'jax' not in imported


def test_a_draft_is_a_line_with_what_decided():
  texts = types.SimpleNamespace(
    token_strings=lambda ids: [['', ' b', "c'\n", 'd'][ids[0]]],
    piece=lambda i: f'<{i}>',
  )
  bare = (None,) * 6
  explained = [
    Explanation(1, 1, 1, 0.5, 0.5, 0.5, 1.0, 0.25, False, []),
    Explanation(0, 2, 2, 0.5, 0.25, 1e-6, 2e-6, 0.875, True, [(0, 0.75)]),
    Explanation(1, 3, *bare, False, []),
    Explanation(1, 2, 3, 0.5, 0.25, 0.125, None, None, None, []),
    Explanation(1, 2, *bare, None, []),
  ]
  decoder = types.SimpleNamespace(tokenizer=texts)
  assert list(sample.decisions(decoder, explained)) == [
    "1/1 ' b' accepted: q 0.5, p 0.5, pi 0.5, a 1, u 0.25, not deferred",
    '1/2 "c\'\\n" rejected: q 0.5, p 0.25, pi 1e-06, a 2e-06, u 0.875,'
    " deferred; '<0>' from the residual: '<0>' 0.75",
    "3/1 'd' rejected: q 0.5, p 0.25, pi 0.125; ' b' from the residual",
  ]
  answer = types.SimpleNamespace(
    **dict(tokens=[3, 3, 1, 2], sources=[0, 0, 1, 3], law_given='path'),
    **dict(logprobs=[0, 0], verifier_logprobs=[-1.5, -math.inf]),
    **dict(drafter_logprobs=[-0.25, None], target_logprobs=[None, 0.0]),
  )
  header, *lines = map(str.split, sample.token_table(decoder, answer))
  assert header == 'token source verifier drafter target (path)'.split()
  want = "' b' draft -1.5 -0.25 -", '"c\'\\n" bonus -inf - 0'
  assert lines == [*map(str.split, want)]


_LINES = [
  ('--lenience=-0.5', ', lenience -0.5, gamma 4, temperature 1, lossless: '),
  ('--lenience=0', ', lossy: acceptance rate '),
  ('--drafter=ngram --explain', '\n\nNo draft was examined.\n'),
  (
    '--lenience=0.3 --verification=block --gate=processed --bonus=verifier'
    ' --temperature=0 --explain --stop_string=hundred',
    'token_v3 block gate processed bonus verifier, lenience 0.3, gamma 4, t',
  ),
  ('--method=speed', 'speed, lenience 0, gamma 4, temperature 1, lossless: '),
  ('--gamma=0', ', lossless: 1.00 tokens per verifier call.'),
]


@pytest.mark.parametrize(('options', 'words'), tiers.first(_LINES, 3))
def test_the_last_line_says_if_the_law_is_the_verifiers(options, words):
  flags = _PROMPT, '--max_new_tokens=8', *options.split()
  done = launching.run('experiments.sample', *flags)
  assert done.returncode == 0, done.stderr
  assert words in done.stdout
  assert ('  target' in done.stdout) == ('--explain' in options)
  assert ('target (path)' in done.stdout) == ('bonus=verifier' in options)
  assert 'nan' not in done.stdout
  is_cut = 'hundred' not in done.stdout.partition('\n\n')[0]
  assert is_cut or 'stop_string' not in options
  assert '\x1b' not in done.stdout
  # No library's log, only what is being done.
  assert done.stderr.splitlines()[-1] == 'compiling, then decoding'
  loading = {'loading tiny-verifier', 'loading tiny-drafter'}
  assert {*done.stderr.splitlines()[:-1]} <= loading


@pytest.mark.slow
def test_what_was_compiled_is_kept_for_the_next_process(tmp_path, monkeypatch):
  # The tests' own folder would be taken instead.
  monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR')
  # All of it: what takes about half a second, the default, takes more than that
  # in one process and less in the next.
  monkeypatch.setenv('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  arguments = '--prompt=x --max_new_tokens=2 --gamma=0'.split()

  def run():
    done = launching.python('-m', 'experiments.sample', *arguments)
    assert done.returncode == 0, done.stderr
    files = (tmp_path / 'cascades' / 'compiled').glob('*-cache')
    written = {path: path.stat().st_mtime_ns for path in files}
    assert written
    return written, done.stdout, done.stderr

  assert run() == run()


_IMPORT = f'--import={small.FIXTURES}/own_entries.py'
_CONFIG = """
from configs import common

def get_config():
  return common.sweep(
    verifier={verifier!r},
    drafter='own_drafter',
    own_window=2,
    tasks=('own_task',),
    num_examples=4,
    batch_size=4,
    clock=0,
  )

def sweep(add):
  add('verifier_only', ())
  add('own_method', (0.0, 0.5), gamma=2, verification='own_verification')
"""


@pytest.mark.slow
@pytest.mark.parametrize('launcher', ['local', 'ray'])
def test_a_sweep_uses_an_entry_of_each_kind(tmp_path, launcher):
  if launcher == 'ray':
    pytest.importorskip('ray', reason="pip install -e '.[ray]'")
  folder = tmp_path / 'model'
  folder.mkdir()
  (folder / 'own_model.txt').write_text(small.pair()[0])
  config, workdir = tmp_path / 'config.py', tmp_path / 'run'
  config.write_text(_CONFIG.format(verifier=str(folder)))
  flags = f'--config={config}', f'--workdir={workdir}'
  flags = *flags, f'--launcher={launcher}'
  done = launching.run('experiments.sweep', _IMPORT, *flags)
  assert done.returncode == 0, done.stderr
  summary = pd.read_csv(workdir / 'summary.csv')
  rows = summary[summary.method == 'own_method']
  assert rows.lenience.tolist() == [0.0, 0.5]
  assert {*rows.task} == {'own_task'}
  assert {*rows.verification} == {'own_verification'}
  for record in records.read_all(workdir):
    assert [*record.scores] == ['same_letters', 'exact_match']
  # The report does not import the file.
  done = launching.run('experiments.report', f'--workdir={workdir}')
  assert done.returncode == 0, done.stderr
  points = runs.gather(runs.read(workdir)).table
  is_strict = points[points.method == 'own_method'].set_index('lenience').strict
  assert is_strict.to_dict() == {0.0: True, 0.5: False}


def test_options_of_a_drafter_are_flags():
  done = launching.run('experiments.sample', _IMPORT, '--help')
  text = ' '.join(done.stdout.split())
  assert '--own_window: Last tokens that another look-up compares' in text
  done = launching.run('experiments.sample', '--own_window=3', '--prompt=x')
  assert done.returncode == 2
  assert "Unknown command line flag 'own_window'" in done.stderr
