"""A sweep that is killed in the midst of a point."""

import signal

import launching
import processes_test
import pytest
import small
from processes_test import NUMERALS, files_of


@pytest.mark.slow
def test_a_sweep_that_was_killed_ends_the_same(tmp_path):
  whole, broken = tmp_path / 'whole', tmp_path / 'broken'
  processes_test.finish(processes_test.start(whole, *NUMERALS, devices=1))
  process = processes_test.start(broken, *NUMERALS, devices=1)
  processes_test.wait_for(
    lambda: process.poll() is not None or any(broken.glob('records/*.jsonl'))
  )
  process.send_signal(signal.SIGKILL)
  launching.finish(process)
  processes_test.finish(processes_test.start(broken, *NUMERALS, devices=1))
  assert small.answers(broken) == small.answers(whole)
  assert files_of(broken) == files_of(whole)
  assert not list(broken.glob('*/.*.part'))
