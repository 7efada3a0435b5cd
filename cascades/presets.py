"""Engines' lossy switches, as options of decoding.

  Sampler(verifier, drafter, config=presets.vllm_fly(window=4, temperature=0.7))

Each function returns the `DecodingConfig` that decodes as the engine does;
flags and curves take its name, as in `vllm_fly:window=4`. Most engines draft
the most probable tokens, at any temperature, and draw bonus tokens from p.
"""

import inspect
import math
from typing import Any

from cascades import arguments
from cascades.config import DecodingConfig
from cascades.methods import engines

_USUAL = dict(bonus='verifier', draft='argmax')
_GREEDY = dict(temperature=0.0, gate='raw', **_USUAL)


def vllm_fly(
  window: int | None = None, entropy: float = 0.3, top_k: int = 3, **options
) -> DecodingConfig:
  """The `rejection_sample_method='fly'` of vLLM.

  A draft that strict decoding rejects stays if p > 0, the entropy of p's
  `top_k` largest, in nats and as they are, is at least `entropy`, and the block
  has `window` more drafts, which strict decoding accepts; None is the lesser of
  6 and gamma - 1. The law depends on where blocks begin. The lenience is
  -entropy, strict below -log(top_k). p is processed, at temperature 0 raw.
  """
  gamma = options.get('gamma', DecodingConfig.gamma)
  room = arguments.integer('gamma', gamma, 2) - 1
  window = min(6, room) if window is None else window
  window = arguments.integer('window', window, 1, room)
  gate = 'processed' if options.get('temperature', 1.0) else 'raw'
  return _config(
    options,
    engines.entropy_gate(arguments.integer('top_k', top_k, 1)),
    -arguments.number('entropy', entropy, 0, math.inf),
    **dict(verification=f'look_ahead:{window + 1}', gate=gate, **_USUAL),
  )


def transformers_ensemble(w: float = 0.5, **options: Any) -> DecodingConfig:
  """The `assistant_ensemble_weight` of transformers, above 0; 1 is strict.

  The law of a drafted position is w p + (1 - w) q, at temperature 0 the argmax
  of that mixture at temperature 1; bonus tokens have p. The lenience is 1 - w.
  transformers 5.24 divides the logits of q by the temperature twice, this once.
  """
  is_greedy = options.get('temperature', 1.0) == 0
  method = engines.ensemble_argmax if is_greedy else 'ensemble'
  lenience = 1 - arguments.number('w', w, 1e-6, 1)
  return _config(options, method, lenience, bonus='verifier', draft='sample')


def trtllm_relaxed(
  top_k: int = 10, delta: float = 0.6, **options: Any
) -> DecodingConfig:
  """The relaxed acceptance of TensorRT-LLM, in which nothing is drawn.

  A draft stays if its softmax at temperature 1 is among the `top_k` largest and
  at least the largest minus `delta`, the lenience; else the token is the
  argmax, as is the bonus. It holds in the whole answer, there in thinking
  spans. The values are documented; the defaults (1, 0) keep ties.
  """
  method = engines.relaxed_top(arguments.integer('top_k', top_k, 1))
  delta = arguments.number('delta', delta, 0, 1)
  return _config(options, method, delta, **_GREEDY)


def sglang_threshold(
  single: float = 1.0, acc: float = 1.0, **options: Any
) -> DecodingConfig:
  """The `speculative_accept_threshold_single` and `_acc` of SGLang.

  A draft x stays if u <= p(x) / acc or p(x) >= single, whatever q is; else a
  token is drawn from p without x. (1, 1), the default, has the law p, with
  acceptance p(x). The lenience is 1 - single; greedily only 1 is lenient.
  """
  method = engines.accept_threshold(arguments.number('acc', acc, 0, 1))
  lenience = 1 - arguments.number('single', single, 0, 1)
  return _config(options, method, lenience, **_USUAL)


def medusa_typical(threshold: float = 0.09, **options: Any) -> DecodingConfig:
  """The typical acceptance of Medusa at its temperature 1.

  A draft stays if p > min(threshold, sqrt(threshold) exp(-H)), H the entropy of
  the softmax p; else the token is the argmax, as is the bonus. The lenience is
  1 - threshold. Medusa's default temperature is 0, which is strict; it has a
  tree of drafts, here there is one.
  """
  lenience = 1 - arguments.number('threshold', threshold, 0, 1)
  return _config(options, 'typical', lenience, **_GREEDY)


_PRESETS = vllm_fly, transformers_ensemble, trtllm_relaxed, sglang_threshold
PRESETS = {x.__name__: x for x in (*_PRESETS, medusa_typical)}


def configure(method=DecodingConfig.method, **options: Any) -> DecodingConfig:
  """Returns the options of a method, or of a preset's name with arguments."""
  name, _, text = str(method).partition(':')
  if name not in PRESETS:
    return DecodingConfig(method=method, **options)
  *parameters, _ = inspect.signature(PRESETS[name]).parameters.values()
  defaults = {x.name: x.default for x in parameters}
  values: dict[str, Any] = {}
  if 'top_k' in defaults and options.pop('top_k', None) is not None:
    raise ValueError(f'top_k: is a number here; write {name}:top_k=3.')
  for part in filter(None, text.split(',')):
    key, _, value = part.partition('=')
    try:
      kind = float if isinstance(defaults[key], float) else int
      values[key] = kind(value)
    except (KeyError, ValueError):
      raise ValueError(
        f'method: {arguments.quote(method)} is not known; write numbers of'
        f' {", ".join(defaults)}, as in {name}:{parameters[0].name}=1.'
      ) from None
  lenience = options.pop('lenience', None)
  config = PRESETS[name](**values, **options)
  return config if lenience is None else config.replace(lenience=lenience)


def _config(options, method, lenience, **fixed: Any) -> DecodingConfig:
  """Returns the options with those that the engine fixes."""
  declared = arguments.options_of(DecodingConfig)
  for name, value in (fixed | {'drafts': 1}).items():
    if options.get(name) not in (None, declared[name].default, value):
      quoted = arguments.quote(options[name])
      raise ValueError(
        f'{name}: is {value!r} in this engine, got {quoted}; leave it out.'
      )
  values = {**options, **fixed, 'method': method, 'lenience': lenience}
  return DecodingConfig(**values)
