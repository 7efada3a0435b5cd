"""The sample launcher, as a user runs it."""

import types

import launching
import pytest

from cascades.sampler.scoring import Explanation
from experiments import sample

_PROMPT = '--prompt=The number 4302 in words:'


def test_help_comes_without_importing_a_model_library():
  command = '-X', 'importtime', '-m', 'experiments.sample', '--help'
  done = launching.python(*command)
  for flag in ('prompt', 'method', 'gamma', 'stop_below', 'dtype'):
    assert f'--{flag}: ' in done.stdout
  imported = {line.split('|')[-1].strip() for line in done.stderr.split('\n')}
  assert 'absl.flags' in imported
  assert not {'gemma', 'tensorflow', 'orbax.checkpoint'} & imported


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


@pytest.mark.parametrize(
  ('options', 'words'),
  [
    ('--method=speed', 'speed, lenience 0, gamma 4, temperature 1, lossless: '),
    ('--lenience=-0.5', ', lenience -0.5, gamma 4, temperature 1, lossless: '),
    ('--lenience=0', ', lossy: acceptance rate '),
    (
      '--lenience=0.3 --verification=block --gate=processed --bonus=verifier'
      ' --temperature=0 --explain --stop_string=hundred',
      'token_v3 block gate processed bonus verifier, lenience 0.3, gamma 4, t',
    ),
    ('--gamma=0', ', lossless: 1.00 tokens per verifier call.'),
    ('--drafter=ngram --explain', 'call.\n\nNo draft was examined.\n'),
  ],
)
def test_the_last_line_says_if_the_law_is_the_verifiers(options, words):
  flags = _PROMPT, '--max_new_tokens=8', *options.split()
  done = launching.run('experiments.sample', *flags)
  assert done.returncode == 0, done.stderr
  assert words in done.stdout
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
