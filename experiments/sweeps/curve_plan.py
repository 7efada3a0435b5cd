"""Curves of a sweep: a method with a gamma and options, at several leniences.

The leniences of a curve are decoded together, in one compiled loop. A config
names one curve, or its `sweep` function adds many.
"""

import dataclasses
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cascades import arguments, drafters, methods, presets
from cascades.config import DecodingConfig
from cascades.methods import processing
from experiments import records
from experiments.analysis import comparisons
from experiments.sweeps.fields import PREDICTED, SweepConfig
from experiments.sweeps.sequence import CONFIDENCES

# Methods of one model alone, which have no gamma, options or lenience.
MODEL_BASELINES = {'verifier_only': 'verifier', 'drafter_only': 'drafter'}
# Methods without a lenience, which are a single point.
_NO_LENIENCE = (*MODEL_BASELINES, 'always_accept')
# Options in which the curves of a sweep may differ, beside method and lenience.
_OPTIONS = ('gamma', *records.OPTIONS)
# Options that all curves of a sweep share.
_SHARED = ('temperature', 'top_k', 'top_p', 'cache_length', 'tree_size')
# Most points of a predicted front that are decoded.
_MAX_SELECTED = 4
# Fields of a config that become curves.
CURVE_FIELDS = ('method', 'lenience', *_OPTIONS)


@dataclasses.dataclass(frozen=True)
class Curve:
  """A method with its options, decoded at several leniences.

  Attributes:
    config: The options, except lenience and batch size; of a cascade of whole
      answers those of the drafter alone.
    leniences: Leniences of the points; empty if the method has none.
    confidence: Key of `sequence.CONFIDENCES` for a cascade of whole answers;
      None for all other curves.
    drafter_options: Names and values of options of the drafter's spec.
    num_examples: Most examples of a task, its first ones; None for all.
  """

  config: DecodingConfig
  leniences: tuple[float, ...]
  confidence: str | None = None
  drafter_options: tuple[tuple[str, Any], ...] = ()
  num_examples: int | None = None

  def __post_init__(self):
    if not self.leniences and self.method not in _NO_LENIENCE:
      raise ValueError(f'lenience: {self.method} needs at least one value.')
    if self.num_examples is not None:
      arguments.integer('num_examples', self.num_examples, 1)
    for lenience in self.leniences:
      self.config.replace(lenience=lenience)

  @classmethod
  def from_config(
    cls,
    config: Mapping[str, Any],
    method: str,
    leniences: Iterable[float],
    *,
    num_examples: int | None = None,
    **options: Any,
  ) -> 'Curve':
    """Makes a curve of a sweep's config, of the options that it reads."""
    if unknown := sorted(options.keys() - {*_OPTIONS}):
      raise ValueError(
        f'sweep: {unknown[0]} is not an option of a curve; choose from'
        f' {", ".join(_OPTIONS)}.'
      )
    name, confidence = _canonical_name(method), None
    values = {x: config[x] for x in (*_OPTIONS, *_SHARED) if x in config}
    values |= options
    if not _makes_drafts(name):
      values['gamma'] = 0
    if name in CONFIDENCES:
      method, name, confidence = 'drafter_only', 'drafter_only', name
    # Options that a curve does not read are left at their defaults.
    is_preset = method.partition(':')[0] in presets.PRESETS
    reads_gates = is_preset or methods.get_method(name).reads_gates
    unread = set() if reads_gates else {'gate'}
    if values.get('temperature', 1.0) < processing.GREEDY_BELOW:
      unread |= {'top_k', 'top_p', 'draft'}
    if not values.get('gamma', 1):
      unread |= {*records.OPTIONS}
    if not values.get('gamma', 1) or values.get('drafts', 1) == 1:
      unread.add('tree_size')
    values = {name: x for name, x in values.items() if name not in unread}
    decoding = presets.configure(method, **values)
    if is_preset:
      leniences = tuple(leniences) or (decoding.effective_lenience,)
      decoding = decoding.replace(lenience=None)
      if decoding.temperature != values.get('temperature', 1.0):
        raise ValueError(
          f'temperature: {method} decodes at {decoding.temperature:g}, and'
          ' curves share one; give that to the sweep.'
        )
    used = drafter_options(config) if decoding.gamma else {}
    if not confidence and name in _NO_LENIENCE:
      leniences = ()
    return cls(
      decoding,
      tuple(leniences),
      confidence,
      drafter_options=tuple(used.items()),
      num_examples=num_examples,
    )

  @property
  def method(self) -> str:
    """Key of `METHODS`, or of `sequence.CONFIDENCES`."""
    return self.confidence or self.config.method.name

  @property
  def baseline_model(self) -> str | None:
    """The model that decodes alone: 'verifier' or 'drafter'; or None."""
    return MODEL_BASELINES.get(self.method)

  @property
  def options(self) -> dict[str, Any]:
    """Gamma and options of the curve, by the names of config fields."""
    return {name: getattr(self.config, name) for name in _OPTIONS}

  @property
  def fields(self) -> dict[str, Any]:
    """The fields that identify the curve, which are hashed for points."""
    return dict(method=self.method, leniences=self.leniences, **self.options)

  @property
  def settings(self) -> dict[str, Any]:
    """The fields of the curve that are saved."""
    count = self.num_examples
    saved = self.fields | ({} if count is None else {'num_examples': count})
    if not methods.is_builtin(self.config.method):
      # For readers of the results who do not import the method.
      saved['strict'] = [
        x for x in self.leniences if self.config.method.is_strict(x)
      ]
    return saved

  @property
  def name(self) -> str:
    """A name that no other curve of the sweep has."""
    count = self.num_examples
    return self.points_name + ('' if count is None else f' on {count}')

  @property
  def points_name(self) -> str:
    """The part of the name that its records share, without num_examples."""
    options = self.options
    gamma = options.pop('gamma')
    name = records.variant(self.method, **options)
    return f'{name} gamma {gamma}' if gamma else name

  @property
  def points(self) -> list[tuple[str, float | None]]:
    """The name and lenience of each point."""
    return [(self.points_name, x) for x in self.leniences or (None,)]


def drafter_options(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the options of the drafter that a config has, by name."""
  values = {name: config.get(name) for name in drafters.declared_options()}
  return {name: value for name, value in values.items() if value is not None}


def _canonical_name(method: str) -> str:
  """Returns the name of a method; a preset's has its arguments."""
  is_preset = method.partition(':')[0] in presets.PRESETS
  is_name = is_preset or method in CONFIDENCES
  return method if is_name else methods.get_method(method).name


def _makes_drafts(method: str) -> bool:
  """True unless a method is one model alone or a cascade of whole answers."""
  return method not in MODEL_BASELINES and method not in CONFIDENCES


def plan_curves(
  config: Mapping[str, Any],
  module: types.ModuleType | None,
  overrides: Mapping[str, Any],
  select: Callable[..., pd.DataFrame | None] = lambda *request: None,
) -> list[Curve]:
  """Returns the curves of a sweep, which its config's `sweep(add)` names.

  `select` has the points of a method whose leniences or gammas are predicted;
  None leaves them out. They need the verifier alone.
  """
  overridden = {*CURVE_FIELDS, 'num_examples'} & {*overrides}
  only = _canonical_name(config['method']) if 'method' in overridden else None
  curves: list[Curve] = []
  predicted: list[str] = []

  def add(method, lenience=(), gamma=None, num_examples=None, **options):
    """Adds a curve for each gamma."""
    method, leniences = _canonical_name(method), _as_tuple(lenience)
    if only not in (None, method):
      return
    if 'lenience' in overridden and leniences:
      leniences = _as_tuple(config['lenience'])
    options = {
      name: value
      for name, value in options.items()
      if value is not None and name not in overridden
    }
    if gamma is None or 'gamma' in overridden:
      gamma = config['gamma']
    if 'num_examples' in overridden:
      num_examples = None
    fields = dict(num_examples=num_examples, **options)
    gammas = _as_tuple(gamma if _makes_drafts(method) else 0)
    pairs = [(x, leniences) for x in gammas]
    if PREDICTED in (*gammas, *leniences):
      predicted.append(method)
      points = select(method, leniences, gammas)
      by_gamma = () if points is None else points.groupby('gamma').lenience
      pairs = [(gamma, sorted(x)) for gamma, x in by_gamma]
      curves.append(Curve.from_config(config, 'verifier_only', ()))
    for value, of_gamma in pairs:
      curves.append(
        Curve.from_config(config, method, of_gamma, gamma=value, **fields)
      )

  if (sweep := getattr(module, 'sweep', None)) is None:
    add(config['method'], config['lenience'])
  elif len(inspect.signature(sweep).parameters) > 1:
    sweep(add, config)
  else:
    sweep(add)
  if only and not curves:
    add(only, config['lenience'])
  return _merged(curves) if overridden or predicted else curves


def _as_tuple(value: Any) -> tuple[Any, ...]:
  """Returns a value, or each of several, in a tuple."""
  is_several = isinstance(value, Iterable) and not isinstance(value, str)
  return tuple(value) if is_several else (value,)


def select_points(
  points: pd.DataFrame, method: str, leniences: Sequence, gammas: Sequence
) -> pd.DataFrame:
  """Selects predicted points of a method at leniences and gammas.

  A lenience has its fastest gamma. If leniences are predicted, they are those
  of the front of speed-up and distance, evenly over its latencies.
  """
  points = points.query('method == @method')
  if points.empty:
    raise ValueError(f'predicted: {method} is not; give another --workdir.')
  by_point: Any = points.groupby(['lenience', 'gamma'], as_index=False)
  points = by_point.mean(numeric_only=True).assign(method=method)
  points['latency'] = 1 / points.speedup
  points['quality'] = -points.total_variation
  if PREDICTED not in gammas:
    points = points.query('gamma in @gammas')
  if PREDICTED not in leniences:
    points = points.query('lenience in @leniences')
    return points.sort_values('latency').drop_duplicates('lenience')
  front = comparisons.front(points)
  latency = front.latency.to_numpy()
  levels = np.linspace(latency[0], latency[-1], _MAX_SELECTED)
  return front.iloc[sorted({*np.abs(latency[:, None] - levels).argmin(0)})]


def _merged(curves: Sequence[Curve]) -> list[Curve]:
  """Leaves each point to the first curve of those with the most examples."""
  owners: dict[tuple[str, float | None], str] = {}
  for curve in sorted(curves, key=lambda x: -(x.num_examples or math.inf)):
    for point in curve.points:
      owners.setdefault(point, curve.name)
  merged: dict[str, Curve] = {}
  for curve in curves:
    leniences = [x for (_, x), name in owners.items() if name == curve.name]
    if leniences:
      leniences = tuple(x for x in leniences if x is not None)
      merged[curve.name] = dataclasses.replace(curve, leniences=leniences)
  return list(merged.values())


def complete_curves(
  curves: Sequence[Curve], config: SweepConfig
) -> list[Curve]:
  """Checks the curves of a sweep together, and adds the models alone.

  Cascades of whole answers need both models, and a decision the verifier. A
  drafter that is no model cannot answer alone.
  """
  if not drafters.kind_of(config.drafter).is_language_model:
    left_out = [
      x for x in curves if x.baseline_model == 'drafter' or x.confidence
    ]
    curves = [x for x in curves if x not in left_out]
    if left_out:
      print(
        f'drafter: {config.drafter} cannot answer alone; the sweep leaves out'
        f' {", ".join(curve.name for curve in left_out)}.',
        file=sys.stderr,
      )
  if not curves:
    raise ValueError(
      'sweep: must have at least one curve; give a method, and a gamma if the'
      ' method drafts.'
    )
  points = [point for curve in curves for point in curve.points]
  for i, (name, lenience) in enumerate(points):
    if (name, lenience) in points[:i]:
      at = '' if lenience is None else f' at lenience {lenience:g}'
      raise ValueError(
        f'sweep: {name}{at} is added twice; keep the one with more examples.'
      )
  sizes = {x.method: x.num_examples or math.inf for x in curves}
  needed = ['verifier_only'] if config.decision else []
  for curve in curves:
    if curve.confidence:
      needed = list(MODEL_BASELINES)
      smallest = min(sizes.get(name, math.inf) for name in needed)
      if (curve.num_examples or math.inf) > smallest:
        raise ValueError(
          f'num_examples: {curve.name} selects among the answers of'
          ' verifier_only and drafter_only; give both curves at least as many'
          ' examples.'
        )
  missing = [
    Curve.from_config(config.values, name, ())
    for name in needed
    if name not in sizes
  ]
  return [*missing, *curves]
