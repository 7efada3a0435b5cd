"""Free memory, models that exceed it, and batches that are halved."""

import functools
import types

import conftest
import jax
import pytest
import small

from cascades.models import checkpoints, memory


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(monkeypatch):
  verifier, _ = small.pair()
  weights = memory.num_bytes(checkpoints.load_model(verifier).params)
  monkeypatch.setattr(memory, 'available', lambda: weights)
  monkeypatch.setattr(checkpoints, 'place_params', None)
  message = conftest.refused('memory', checkpoints.load_model, verifier)
  assert f'{verifier} with one row needs 0.00 GB where' in message


@pytest.mark.usefixtures('few_shapes')
def test_a_batch_is_halved_until_it_fits(monkeypatch):
  sampler = small.sampler(*small.tables(), batch_size=4, temperature=0.0)
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
  monkeypatch.setattr(memory, 'available', lambda: 10**9)
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
  write(meminfo='MemTotal: 900 kB\n')
  assert memory.available() is None
  write(meminfo='MemTotal: 900 kB\nMemAvailable:  100 kB\n')
  assert memory.available() == 102_400
  write(self__cgroup='0::/a/b\n', memory_max='max\n', a__memory_max='5000\n')
  write(a__memory_current='4500\n', a__b__memory_max='max\n')
  assert memory.available() == 500
  write(a__memory_stat='anon 1\ninactive_file 200\n')
  assert memory.available() == 700
  # There may be nothing left.
  write(a__b__memory_max='5', a__b__memory_current='9')
  write(a__b__memory_stat='anon 1')
  assert memory.available() == 0
