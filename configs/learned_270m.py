"""A rule that was learnt for Gemma 3 270M and its drafter, on captions.

Command: python -m experiments.sweep --config=configs/learned_270m.py
Shows: what configs/learned.py does, on few captions of Multi30k. It wants
`pip install -e '.[gemma]'`, the captions,
`--config.task.path=multi30k/test_2016_flickr`, and the rule, which two sweeps
and a training make of captions of `val`. The sweeps, for METHOD opt and
token_v1: `python -m experiments.sweep --config=configs/gemma3_270m.py
--config.method=METHOD --config.num_examples=60 --config.split=validation
--config.task.path=multi30k/val --config.dtype=float32
--workdir=runs/captions_METHOD`. The training:
`python -m experiments.train --config=configs/train_rule.py
--config.workdirs=runs/captions_opt,runs/captions_token_v1
--config.texts=240 --config.score=chrf --config.sharpness=4
--config.ridge=1e-4 --config.name=captions`. All of it takes half an hour on one
CPU core.
"""

import ml_collections

from configs import gemma3_270m


def get_config() -> ml_collections.ConfigDict:
  c = gemma3_270m.get_config()
  c.num_examples = 60
  # As the weights are stored.
  c.dtype = None
  return c


def sweep(add):
  """Curves of few points."""
  add(method='verifier_only', lenience=())
  add(method='drafter_only', lenience=())
  add(method='speed', lenience=(0.0,))
  add(method='opt', lenience=(-0.1, 0.0, 0.1))
  add(method='learned:runs/train_rule/captions', lenience=(-0.1, 0.0, 0.1))
  add(method='token_v3', lenience=(0.5, 0.8, 0.95))
