"""Models of the Hugging Face hub, from a server that speaks its protocol."""

import functools
import hashlib
import http.server
import json
import pathlib
import re
import shutil
import sys
import threading
import time

import conftest
import launching
import pytest
import small
from huggingface_hub import constants

import cascades
from cascades import drafters
from cascades.config import DecodingConfig
from cascades.models import checkpoints, hub
from experiments.sweeps import curve_plan, plan, worker


class Hub(http.server.ThreadingHTTPServer):
  """A server with repositories, and what was asked of it."""

  daemon_threads = True

  def __init__(self):
    # Folders by repository and revision, and the status of those refused; how
    # many answers of a file end early; method, path and headers of requests.
    self.repos, self.gated, self.cut, self.asked = {}, {}, {}, []
    super().__init__(('127.0.0.1', 0), _Handler)
    self.url = f'http://127.0.0.1:{self.server_port}'
    serve = functools.partial(self.serve_forever, poll_interval=0.02)
    threading.Thread(target=serve, daemon=True).start()

  def stop(self):
    self.shutdown()
    self.server_close()

  def commits(self, repo) -> dict:
    """Commits by revision: a hash of the folder's path."""
    return {
      revision: hashlib.sha1(str(folder).encode()).hexdigest()
      for revision, folder in self.repos.get(repo, {}).items()
    }

  def fetched(self) -> set[str]:
    """Names of the files that were downloaded."""
    paths = [p for method, p, _ in self.asked if method == 'GET']
    return {
      p.split('/resolve/')[1].split('/', 1)[1] for p in paths if 'res' in p
    }


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'

  def log_message(self, *_):
    pass

  def _reply(self, status, body=b'', **headers):
    self.send_response(status)
    for name, value in headers.items():
      self.send_header(name.replace('_', '-'), str(value))
    self.send_header('Content-Length', str(len(body)))
    # A connection that is kept would outlive the server.
    self.send_header('Connection', 'close')
    self.end_headers()
    if self.command == 'GET':
      self.wfile.write(body)

  def do_GET(self):
    headers = {name.lower(): x for name, x in self.headers.items()}
    self.server.asked.append((self.command, self.path, headers))
    asked = re.fullmatch(
      r'(?:/api/models)?/(.+)/(revision|tree|resolve)/([^/]+)/?(.*)',
      self.path.partition('?')[0],
    )
    repo, kind, revision, file = asked.groups() if asked else [None] * 4
    commits = self.server.commits(repo)
    names = {commit: name for name, commit in commits.items()}
    commit = commits.get(revision, revision)
    if commit not in names:
      kind = 'Revision' if commits else 'Repo'
      self._reply(404, X_Error_Code=f'{kind}NotFound')
      return
    folder = self.server.repos[repo][names[commit]]
    if kind == 'revision':
      fields = {'id': repo, 'sha': commit, 'siblings': []}
      self._reply(200, json.dumps(fields).encode())
    elif kind == 'tree':
      files = [
        {
          'type': 'file',
          'path': x.relative_to(folder).as_posix(),
          'size': x.stat().st_size,
          'oid': hashlib.sha1(x.read_bytes()).hexdigest(),
        }
        for x in sorted(folder.rglob('*'))
        if x.is_file()
      ]
      self._reply(200, json.dumps(files).encode())
    elif repo in self.server.gated:
      self._reply(self.server.gated[repo], X_Error_Code='GatedRepo')
    else:
      self._file(folder / file, commit)

  do_HEAD = do_GET  # noqa: N815

  def _file(self, path, commit):
    body = path.read_bytes()
    headers = dict(
      ETag=f'"{hashlib.sha1(body).hexdigest()}"',
      X_Repo_Commit=commit,
      X_Linked_Size=len(body),
    )
    start = re.fullmatch(r'bytes=(\d+)-', self.headers.get('Range', ''))
    if self.command == 'GET' and self.server.cut.get(path.name):
      self.server.cut[path.name] -= 1
      self.send_response(206 if start else 200)
      self.send_header('Content-Length', str(len(body)))
      self.end_headers()
      self.wfile.write(b'' if start else body[: len(body) // 2])
      self.wfile.flush()
      self.close_connection = True
      self.connection.close()
    elif start:
      first = int(start[1])
      headers['Content_Range'] = f'bytes {first}-{len(body) - 1}/{len(body)}'
      self._reply(206, body[first:], **headers)
    else:
      self._reply(200, body, **headers)


@pytest.fixture
def server(tmp_path, monkeypatch):
  """A hub with the small pair, each beside files that nobody should want."""
  served = Hub()
  for name, source in zip(('verifier', 'drafter'), small.pair(), strict=True):
    folder = shutil.copytree(source, tmp_path / f'served/{name}')
    (folder / 'pytorch_model.bin').write_bytes(b'\x80pickle')
    (folder / 'modeling_gemma.py').write_text('raise SystemExit\n')
    (folder / 'original').mkdir()
    (folder / 'original/config.json').write_text('{}')
    served.repos[f'acme/{name}'] = {'main': folder}
  monkeypatch.setattr(constants, 'ENDPOINT', served.url)
  template = served.url + '/{repo_id}/resolve/{revision}/{filename}'
  monkeypatch.setattr(constants, 'HUGGINGFACE_CO_URL_TEMPLATE', template)
  monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', False)
  monkeypatch.setenv('NO_PROXY', '127.0.0.1')
  monkeypatch.delenv('HF_TOKEN', raising=False)
  monkeypatch.setattr(hub, '_commits', {})
  monkeypatch.setattr(time, 'sleep', lambda s: None)
  yield served
  served.stop()


def _refused(name, option='model', **options):
  return conftest.refused(
    option, lambda x: cascades.load_model(x, **options), name
  )


def test_a_pair_of_the_hub_decodes_as_the_folders_do(server):
  config = DecodingConfig(method='speed', lenience=0.0, gamma=3)
  ours, theirs = (
    cascades.Sampler(*pair, config=config)
    for pair in (small.pair(), ('acme/verifier', 'acme/drafter'))
  )
  want, got = (
    s.sample('The number 4', max_new_tokens=12) for s in (ours, theirs)
  )
  assert (got.tokens, got.counts) == (want.tokens, want.counts)
  fetched = server.fetched()
  assert {'config.json', 'model.safetensors', 'tokenizer.model'} <= fetched
  suffixes = {pathlib.PurePath(name).suffix for name in fetched}
  assert suffixes == {'.json', '.safetensors', '.model'}
  assert not any('/' in name for name in fetched)


def test_a_tokenizer_is_taken_as_json_if_there_is_one(server):
  (server.repos['acme/verifier']['main'] / 'tokenizer.json').write_text('{}')
  assert 'tokenizer.json' in _refused('acme/verifier', 'tokenizer')
  assert 'tokenizer.model' not in server.fetched()


def test_files_that_an_index_names_are_the_only_tensors(server):
  folder = server.repos['acme/verifier']['main']
  (folder / 'model.safetensors').rename(folder / 'part-1.safetensors')
  names = dict.fromkeys(small.stored(folder), 'part-1.safetensors')
  shutil.copy(folder / 'part-1.safetensors', folder / 'copy.safetensors')
  index = folder / 'model.safetensors.index.json'
  index.write_text(json.dumps({'weight_map': names}))
  got = cascades.load_model('acme/verifier')
  small.same(got.params, cascades.load_model(small.pair()[0]).params)
  assert 'copy.safetensors' not in server.fetched()
  # Nor can it ask for pickles.
  index.write_text(json.dumps({'weight_map': dict.fromkeys(names, '*.bin')}))
  pickled = shutil.copytree(folder, folder.parent / 'pickled')
  server.repos['acme/verifier']['pickled'] = pickled
  assert '*.bin is missing' in _refused('acme/verifier@pickled')
  assert 'pytorch_model.bin' not in server.fetched()


def test_a_revision_is_a_branch_or_a_commit(server, tmp_path):
  other = shutil.copytree(small.pair()[1], tmp_path / 'v1')
  server.repos['acme/verifier']['v1'] = other
  commit = server.commits('acme/verifier')['v1']
  want = cascades.load_model(small.pair()[1]).params
  for name, revision in (
    ('acme/verifier@v1', None),
    (f'acme/verifier@{commit}', None),
    ('acme/verifier', 'v1'),
    ('hub:acme/verifier', commit),
  ):
    small.same(cascades.load_model(name, revision=revision).params, want)
  named = hub.commits(['acme/verifier@v1', 'tiny-verifier'])
  assert named == {'acme/verifier@v1': commit}


def test_only_names_of_the_hub_have_revisions(server, tmp_path, monkeypatch):
  for name in ('tiny-verifier', small.pair()[0], 'acme/verifier@main'):
    assert 'cannot be combined' in _refused(name, 'revision', revision='v1')
  monkeypatch.chdir(server.repos['acme/verifier']['main'].parents[1])
  shutil.copytree('served', 'acme')
  assert 'hub:' in _refused('acme/verifier', 'revision', revision='main')
  # A folder of that name is what is meant, unless one says otherwise.
  assert checkpoints.find_format('acme/verifier') == 'huggingface'
  assert checkpoints.find_format('hub:acme/verifier') == 'hub'
  cascades.load_model('acme/verifier')
  assert not server.asked
  cascades.load_model('hub:acme/verifier')
  assert server.asked


def test_the_token_of_the_environment_is_sent(server, monkeypatch):
  monkeypatch.setenv('HF_TOKEN', 'hf_secret')
  cascades.load_model('acme/verifier')
  sent = {headers.get('authorization') for _, _, headers in server.asked}
  assert sent == {'Bearer hf_secret'}
  server.gated['acme/drafter'] = 403
  said = _refused('acme/drafter')
  assert 'gated' in said
  assert 'hf_secret' not in said
  # Without the library, its extra is named.
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  assert "pip install -e '.[hub]' in the checkout" in _refused('acme/verifier')


@pytest.mark.parametrize(
  ('name', 'said'),
  [
    *((f'acme/{x}', 'the hub has not') for x in ('nothing', 'verifier@v9')),
    ('acme/a--b', 'the hub has not sent it'),
    ('hub:nothing', 'is not a name on the hub; write'),
    ('acme/drafter', 'has no *.safetensors file; give a repository with'),
    ('acme/drafter', 'pickles, which run code, are not downloaded'),
  ],
)
def test_what_the_hub_has_not_is_one_sentence(server, name, said):
  (server.repos['acme/drafter']['main'] / 'model.safetensors').unlink()
  message = _refused(name)
  assert name.removeprefix('hub:') in message
  assert said in message
  assert 'pytorch_model.bin' not in server.fetched()


def test_a_download_that_was_cut_is_resumed(server, monkeypatch):
  monkeypatch.setattr(constants, 'DOWNLOAD_CHUNK_SIZE', 1024)
  # The library tries again where the first answer ended.
  server.cut['model.safetensors'] = 1
  got = cascades.load_model('acme/verifier')
  small.same(got.params, cascades.load_model(small.pair()[0]).params)
  (start,) = [x['range'] for _, _, x in server.asked if 'range' in x]
  assert int(start[len('bytes=') : -1]) > 0
  # After several times it gives up; files that are whole are kept.
  server.cut['model.safetensors'] = 9
  assert 'run the command again' in _refused('acme/drafter')
  server.cut.clear()
  server.asked.clear()
  got = cascades.load_model('acme/drafter')
  small.same(got.params, cascades.load_model(small.pair()[1]).params)
  assert server.fetched() == {'model.safetensors'}


def test_the_cache_serves_without_a_network(server, monkeypatch):
  want = cascades.load_model('acme/verifier').params
  hub.fetch('acme/drafter', weights=False)
  for change in (
    lambda: monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True),
    lambda: (
      monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', False) or server.stop()
    ),
  ):
    change()
    hub._commits.clear()
    asked = len(server.asked)
    small.same(cascades.load_model('acme/verifier').params, want)
    assert len(server.asked) == asked
    # In part, or not at all.
    for name in ('acme/drafter', 'acme/other', 'acme/verifier@v1'):
      assert 'the hub has not sent it' in _refused(name)


def test_a_drafter_is_of_the_kind_that_its_config_says(server):
  folder = small.FIXTURES / 'hf_gemma4_shared_assistant'
  server.repos['acme/head'] = {'main': folder}
  assert drafters.kind_of('acme/head') is drafters.Assistant
  got, want = (drafters.load(x) for x in ('acme/head', str(folder)))
  small.same(got.params, want.params)
  assert got.name == 'acme/head'
  assert hub.label(pathlib.Path('mine')) == 'mine'
  asked = len(server.asked)
  assert drafters.kind_of('acme/drafter') is drafters.DraftModel
  assert len(server.asked) > asked
  small.rewrite(server.repos['acme/drafter']['main'], {'model_type': 'llama'})
  hub._commits.clear()
  shutil.rmtree(constants.HF_HUB_CACHE)
  conftest.refused('drafter', drafters.parse, 'acme/drafter')
  # Google's names say it, so that a plan needs no network.
  server.stop()
  for name, kind in (
    ('google/gemma-3-270m-it', drafters.DraftModel),
    ('google/gemma-4-E2B-it-assistant@main', drafters.Assistant),
  ):
    assert drafters.kind_of(name) is kind


def test_a_sweep_records_the_commits(server):
  config = small.config(verifier='acme/verifier', drafter='hub:acme/drafter')
  facts = worker.Worker(
    config,
    [curve_plan.Curve.from_config(config, 'token_v3', (0.5,))],
    plan.configured_tasks(config),
  ).facts()
  assert facts['commits'] == {
    'acme/verifier': server.commits('acme/verifier')['main'],
    'hub:acme/drafter': server.commits('acme/drafter')['main'],
  }


@pytest.mark.slow
def test_the_command_takes_names_of_the_hub(server, tmp_path, monkeypatch):
  monkeypatch.setenv('HF_ENDPOINT', server.url)
  monkeypatch.setenv('HF_HUB_OFFLINE', '0')
  monkeypatch.setenv('HF_HOME', str(tmp_path / 'home'))
  # A new process, for the launcher's may have read the hub's address already.
  command = '-m', 'experiments.sample', '--prompt=The number', '--gamma=2'
  command += '--drafter=acme/drafter', '--max_new_tokens=8'
  done = launching.python(*command, '--verifier=acme/verifier')
  assert (done.returncode, done.stderr.count('rror')) == (0, 0), done.stderr
  # Not the bars of `huggingface_hub`, which are one long line in a file.
  assert done.stderr.splitlines()[:3] == [
    *('downloading acme/verifier', 'loading acme/verifier'),
    'downloading acme/drafter',
  ]
  assert '\r' not in done.stderr
  server.gated['acme/gated'] = 401
  server.repos['acme/gated'] = server.repos['acme/verifier']
  done = launching.python(*command, '--verifier=acme/gated')
  assert done.returncode == 2
  assert done.stderr.startswith('error: model: acme/gated is not a local')
  assert done.stderr.count('\n') == 1
  shown = launching.run('experiments.sample', '--help').stdout
  assert 'google/gemma-3-1b-it@REVISION' in shown
