"""Rules that know more than one place, beside the rules that they come from.

Command: python -m experiments.sweep --config=configs/memory.py
Shows: on word problems, what a schedule of leniences, a budget, a look ahead, a
cap and a margin of logits gain over `token_v2`, `token_v3` and the ensemble
with one lenience for all; each with short and with long blocks, of which the
page takes the better. Truncation of the verifier stands beside them, decoded
strictly: what a rule gains by cutting what is unlikely is not its memory's.
"""

import ml_collections

from configs import common

_GAMMAS = (4, 12)

# Fields of configs/common.py that not every sweep has.
_OPTIONAL_FIELDS = ('verification', 'schedule', 'cap', 'split', 'task')


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  # Problems of their own: no choice was made on these.
  return common.sweep(
    *_OPTIONAL_FIELDS,
    num_examples=400,
    seed=2,
  )


def sweep(add):
  """Curves of few points; leniences are those of the other configs."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0,))
  for method, lenience in (('token_v2', 0.7), ('ensemble', 0.6)):
    for schedule in (
      # Strict where a result is written.
      *('constant', 'first:8', 'ramp:16', 'outside:= ... .'),
      *('budget:0.5', 'budget:2', 'mismatches:2'),
    ):
      add(method=method, lenience=(lenience,), schedule=schedule, gamma=_GAMMAS)
  for cap in 'top:2', 'delta:0.5':
    add(method='ensemble', lenience=(0.6,), cap=cap, gamma=_GAMMAS)
  add(method='ensemble', lenience=(0.6,), verification='look_ahead')
  for verification in 'token', 'look_ahead':
    add(
      method='undecided',
      lenience=(0.5, 0.9),
      verification=verification,
      gamma=_GAMMAS,
    )
  add(method='margin', lenience=(0.1, 0.4), gamma=_GAMMAS)
  # At most as much of p is cut as by token_v2 at its lenience.
  add(method='min_p', lenience=(0.3,), gamma=_GAMMAS)
  add(method='top_k', lenience=(2,), gamma=_GAMMAS)
