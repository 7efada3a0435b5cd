"""Halves of a data set do not depend on anything but the id."""

from experiments.tasks.halves import half_of


def test_halves_are_fixed_and_about_equal():
  # The first bytes of these hashes are 0x5f, 0x6b and 0xd4.
  ids = {'0': 'report', '1': 'report', '2': 'choose'}
  assert {name: half_of(name) for name in ids} == ids
  count = sum(half_of(f'file/all/{n}') == 'choose' for n in range(1000))
  assert 450 < count < 550


def test_every_text_has_a_half():
  assert {half_of('\ud800'), half_of(''), half_of('é')} <= {'choose', 'report'}
