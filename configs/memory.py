"""Rules that read more than one position, compared with their originals.

Command: python -m experiments.sweep --config=configs/memory.py
Shows: in about 45 minutes on two CPU cores, on word problems, the gain of a
schedule of leniences, a budget, look ahead, a cap and a margin of logits over
`token_v2`, `token_v3` and the ensemble with one constant lenience. Each rule
has short and long blocks, and the page selects the better. Strict decoding of
the truncated verifier is included: truncation explains part of a rule's gain.
"""

import ml_collections

from configs import common

_GAMMAS = (4, 12)

# Optional fields of configs/common.py.
_OPTIONAL_FIELDS = ('verification', 'schedule', 'cap', 'split', 'task')


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of this experiment."""
  # The seed selects problems on which no choice was made.
  return common.sweep(
    *_OPTIONAL_FIELDS,
    num_examples=400,
    seed=2,
  )


def sweep(add):
  """Adds curves of few points, with leniences of the other configs."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0,))
  for method, lenience in (('token_v2', 0.7), ('ensemble', 0.6)):
    for schedule in (
      # 'outside' is strict between '=' and '.', where a result is written.
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
  # These cut at most as much of p as token_v2 does at lenience 0.7.
  add(method='min_p', lenience=(0.3,), gamma=_GAMMAS)
  add(method='top_k', lenience=(2,), gamma=_GAMMAS)
