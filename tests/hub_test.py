"""Models of the Hugging Face hub, with repositories that are folders."""

import hashlib
import json
import pathlib
import shutil
import sys

import conftest
import huggingface_hub
import pytest
import small
from huggingface_hub.utils import filter_repo_objects

import cascades
from cascades import drafters
from cascades.config import DecodingConfig
from cascades.models import checkpoints, hub
from experiments.sweeps import curve_plan, plan, worker


class Hub:
  """Repositories, and what was asked of them."""

  def __init__(self, cache):
    # Folders by repository and revision; names of files that were sent.
    self.cache, self.repos, self.fetched = cache, {}, set()
    self.error = None

  def commits(self, repo) -> dict:
    """Commits by revision: a hash of the folder's path."""
    return {
      revision: hashlib.sha1(str(folder).encode()).hexdigest()
      for revision, folder in self.repos.get(repo, {}).items()
    }

  def snapshot_download(self, repo, revision, **patterns):
    """Copies files, as `huggingface_hub` downloads them."""
    if self.error:
      raise self.error
    commits = self.commits(repo)
    names = {commit: name for name, commit in commits.items()}
    commit = commits.get(revision or 'main', revision)
    if commit not in names:
      raise RuntimeError('404\nnot found')
    source = self.repos[repo][names[commit]]
    folder = self.cache / f'models--{repo.replace("/", "--")}/snapshots'
    folder /= commit
    files = [x for x in source.rglob('*') if x.is_file()]
    files = [x.relative_to(source).as_posix() for x in files]
    for name in filter_repo_objects(files, **patterns):
      self.fetched.add(name)
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copyfile(source / name, folder / name)
    return str(folder)


@pytest.fixture
def served(tmp_path, monkeypatch):
  """A hub with the small pair, each beside files that nobody should want."""
  served = Hub(tmp_path / 'cache')
  for name, source in zip(('verifier', 'drafter'), small.pair(), strict=True):
    folder = shutil.copytree(source, tmp_path / f'served/{name}')
    (folder / 'pytorch_model.bin').write_bytes(b'\x80pickle')
    (folder / 'modeling_gemma.py').write_text('raise SystemExit\n')
    (folder / 'original').mkdir()
    (folder / 'original/config.json').write_text('{}')
    served.repos[f'acme/{name}'] = {'main': folder}
  download = served.snapshot_download
  monkeypatch.setattr(huggingface_hub, 'snapshot_download', download)
  monkeypatch.setattr(hub, '_commits', {})
  return served


def test_a_pair_of_the_hub_decodes_as_the_folders_do(served):
  config = DecodingConfig(method='speed', lenience=0.0)
  ours, theirs = (
    cascades.Sampler(*pair, config=config)
    for pair in (small.pair(), ('acme/verifier', 'acme/drafter'))
  )
  want, got = (s.sample('Of 4', max_new_tokens=12) for s in (ours, theirs))
  assert (got.tokens, got.counts) == (want.tokens, want.counts)
  fetched = served.fetched
  assert {'config.json', 'model.safetensors', 'tokenizer.model'} <= fetched
  suffixes = {pathlib.PurePath(name).suffix for name in fetched}
  assert suffixes == {'.json', '.safetensors', '.model'}
  assert not any('/' in name for name in fetched)


def test_an_index_asks_for_no_pickles(served):
  folder = served.repos['acme/verifier']['main']
  names = dict.fromkeys(small.stored(folder), '*.bin')
  index = folder / 'model.safetensors.index.json'
  index.write_text(json.dumps({'weight_map': names}))
  assert '*.bin is missing' in small.refused('acme/verifier')
  assert 'pytorch_model.bin' not in served.fetched


def test_a_revision_is_a_branch_or_a_commit(served, tmp_path):
  other = shutil.copytree(small.pair()[1], tmp_path / 'v1')
  served.repos['acme/verifier']['v1'] = other
  commit = served.commits('acme/verifier')['v1']
  want = cascades.load_model(small.pair()[1]).params
  for name in 'acme/verifier@v1', f'acme/verifier@{commit}':
    small.same(cascades.load_model(name).params, want)
  named = hub.commits(['acme/verifier@v1', 'tiny-verifier', None])
  assert named == {'acme/verifier@v1': commit}


def test_a_folder_of_the_name_is_meant(served, monkeypatch):
  monkeypatch.chdir(served.repos['acme/verifier']['main'].parents[1])
  shutil.copytree('served', 'acme')
  assert checkpoints.find_format('acme/verifier') == 'huggingface'
  cascades.load_model('acme/verifier')
  assert not served.fetched


@pytest.mark.parametrize(
  ('name', 'said'),
  [
    *((f'acme/{x}', '(404 not found)') for x in ('nothing', 'verifier@v9')),
    ('acme/drafter', 'has no *.safetensors file; give a repository with'),
  ],
)
def test_what_the_hub_has_not_is_one_sentence(served, monkeypatch, name, said):
  (served.repos['acme/drafter']['main'] / 'model.safetensors').unlink()
  message = small.refused(name)
  assert name in message
  assert said in message
  assert 'pytorch_model.bin' not in served.fetched
  # A disk that is full is no fault of the hub; without the library, its extra
  # is named.
  served.error = OSError(28, 'No space left on device', 'file')
  with pytest.raises(OSError, match='No space') as error:
    cascades.load_model(name)
  assert error.value is served.error
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  assert "pip install -e '.[hub]' in the checkout" in small.refused(name)


def test_a_drafter_is_of_the_kind_that_its_config_says(served):
  folder = small.FIXTURES / 'hf_gemma4_shared_assistant'
  served.repos['acme/head'] = {'main': folder}
  assert drafters.kind_of('acme/head') is drafters.Assistant
  got, want = (drafters.load(x) for x in ('acme/head', str(folder)))
  small.same(got.params, want.params)
  assert got.name == 'acme/head'
  assert hub.label(pathlib.Path('mine')) == 'mine'
  served.fetched.clear()
  assert drafters.kind_of('acme/drafter') is drafters.DraftModel
  assert 'config.json' in served.fetched
  assert 'model.safetensors' not in served.fetched
  small.rewrite(served.repos['acme/drafter']['main'], {'model_type': 'llama'})
  conftest.refused('drafter', drafters.parse, 'acme/drafter')
  # Google's names say it, so that a plan needs no network.
  served.error = OSError('no network')
  for name, kind in (
    ('google/gemma-3-270m-it', drafters.DraftModel),
    ('google/gemma-4-E2B-it-assistant@main', drafters.Assistant),
  ):
    assert drafters.kind_of(name) is kind


def test_a_sweep_records_the_commits(served):
  config = small.config(verifier='acme/verifier', drafter='acme/drafter')
  curves = [curve_plan.Curve.from_config(config, 'token_v3', (0.5,))]
  facts = worker.Worker(config, curves, plan.configured_tasks(config)).facts()
  names = 'acme/verifier', 'acme/drafter'
  assert facts['commits'] == {x: served.commits(x)['main'] for x in names}
