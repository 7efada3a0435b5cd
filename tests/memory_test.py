"""Free memory, models that exceed it, and batches that are halved."""

import functools
import types

import conftest
import jax
import launching
import pytest
import small

import cascades
from cascades.models import checkpoints, language, memory

# A process may take 1.5 times the weights beside what its imports take.
_LIMITED = """
import resource, sys
import jax, jax.numpy as jnp
import cascades
from cascades.models import gemma_library
gemma_library.import_gemma()
jax.jit(lambda x: x @ x)(jnp.ones((9, 9))).block_until_ready()
*_, size = (x for x in open('/proc/self/status') if x.startswith('VmData'))
most = int(size.split()[1]) * 1024 + int(1.5 * int(sys.argv[2]))
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
config = cascades.DecodingConfig(gamma=0, batch_size=64)
sampler = cascades.Sampler(sys.argv[1], config=config)
print(len(sampler.sample('The number 4', max_new_tokens=4).tokens))
"""


@pytest.mark.slow
def test_a_process_of_its_imports_and_half_more_than_the_weights_answers(
  tmp_path,
):
  tokenizer = cascades.load_model('tiny-drafter').tokenizer
  config = small.config_of(tokenizer.vocab_size, layers=6, width=1024)
  config |= dict(intermediate_size=8192)
  model = language.from_config(config)
  params = model.init_params(jax.random.key(0))
  checkpoints.save_model(
    tmp_path, checkpoints.Checkpoint(model, params, tokenizer)
  )
  weights = memory.num_bytes(params)
  done = launching.python('-c', _LIMITED, tmp_path, weights)
  assert done.stdout.strip() == '4', done.stderr


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(monkeypatch):
  verifier, _ = small.pair()
  weights = memory.num_bytes(checkpoints.load_model(verifier).params)
  monkeypatch.setattr(memory, 'available', lambda: weights)
  monkeypatch.setattr(checkpoints, 'place_params', None)
  message = conftest.refused('memory', checkpoints.load_model, verifier)
  assert f'{verifier} with one row needs 0.00 GB where' in message


def test_a_batch_is_halved_until_it_fits(monkeypatch):
  sampler = small.sampler(*small.pair(), gamma=2, batch_size=4, temperature=0.0)
  prompts = [f'The number {i}' for i in range(4)]
  want = sampler.sample(prompts, max_new_tokens=4)
  assert sampler.usage.batch_size is None
  counted, fit_rows = [], memory.fit_rows
  note = lambda rows, x: counted.append(x) or fit_rows(rows, x)  # noqa: E731
  monkeypatch.setattr(memory, 'fit_rows', note)
  sampler.sample(prompts, max_new_tokens=4)
  # Of rows, and of half as many prompts that wait.
  for rows, limit in ((4, 6), (2, 5), (1, 2)):
    free = limit * counted[0]
    monkeypatch.setattr(memory, 'available', lambda free=free: free)
    got = sampler.sample(prompts, max_new_tokens=4)
    assert [x.tokens for x in got] == [x.tokens for x in want]
    assert sampler.usage.batch_size == (None if rows == 4 else rows)
  # Returned logits are counted, and what is free is asked each time.
  sampler.sample('a', max_new_tokens=4, return_logits=True)
  assert counted[-1] > counted[0]
  monkeypatch.setattr(memory, 'available', lambda: 10)
  for call in (sampler.sample, lambda *x, **y: list(sampler.stream(*x, **y))):
    call = functools.partial(call, max_new_tokens=4)
    assert 'one row needs' in conftest.refused('memory', call, 'a')


def _device(platform, stats):
  return types.SimpleNamespace(platform=platform, memory_stats=lambda: stats)


def test_an_accelerator_says_what_is_free(monkeypatch):
  # As does this machine.
  assert memory.available() > 0
  full = {'bytes_limit': 100, 'bytes_in_use': 30}
  for stats, free in ((full, 70), (None, None), ({'bytes_in_use': 30}, None)):
    device = _device('gpu', stats)
    monkeypatch.setattr(jax, 'local_devices', lambda device=device: [device])
    assert memory.available() == free


def test_a_control_group_may_have_less_than_its_machine(monkeypatch, tmp_path):
  def write(**files):
    for name, text in files.items():
      path = tmp_path / name.replace('__', '/').replace('_', '.')
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(text)

  monkeypatch.setattr(memory, '_PROC', tmp_path)
  monkeypatch.setattr(memory, '_CGROUP', tmp_path)
  monkeypatch.setattr(jax, 'local_devices', lambda: [_device('cpu', None)])
  # Another system does not say; a machine without groups does.
  assert memory.available() is None
  write(meminfo='MemTotal: 900 kB\nMemAvailable:  100 kB\n')
  assert memory.available() == 102_400
  write(self__cgroup='0::/a/b\n', memory_max='max\n', a__memory_max='5000\n')
  write(a__memory_current='4500\n', a__b__memory_max='max\n')
  write(a__memory_stat='anon 1\ninactive_file 200\n')
  assert memory.available() == 700
  # There may be nothing left.
  write(a__b__memory_max='5', a__b__memory_current='9')
  write(a__b__memory_stat='inactive_file 0')
  assert memory.available() == 0
