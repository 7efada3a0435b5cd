"""Decodes every point of a sweep, and reports quality against cost.

Command: python -m experiments.sweep --config=configs/quickstart.py
Shows: a progress bar, a table, and where the report lies.

A point is (task, method, lenience). The leniences of a method are decoded in
one compiled call per batch of prompts. A method's records are written when
they are whole, so a run that was stopped goes on where it was.
"""

import itertools
import json
import math
import pathlib
import time
import types
from collections.abc import Iterator, Mapping
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from experiments import cli

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'What to run, such as configs/quickstart.py.'
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Where results go; by default runs/<name of the config>.'
)


def curves(
  config: Mapping[str, Any],
  module: types.ModuleType | None,
  overrides: Mapping[str, Any],
) -> list[tuple[str, tuple[float, ...]]]:
  """The (method, leniences) pairs of a sweep.

  Args:
    config: Fields; `method` and `lenience` are the only curve where there is
      no `sweep` function.
    module: The config's module, whose `sweep(add)` adds curves.
    overrides: Fields set on the command line: they win, so that a method
      named there is the only one, and leniences given there are everyone's.
  """
  chosen = []

  def add(method, lenience):
    chosen.append((method, tuple(lenience)))

  if hasattr(module, 'sweep'):
    module.sweep(add)
  else:
    add(config['method'], config['lenience'])
  if 'lenience' in overrides:
    given = tuple(config['lenience'])
    chosen = [(m, given if old else ()) for m, old in chosen]
  if 'method' in overrides:
    from cascades import methods

    name = methods.get_method(config['method']).name
    chosen = [(m, ls) for m, ls in chosen if m == name]
    if not chosen:
      chosen = [(name, tuple(config['lenience']))]
  return chosen


def _plain(value: Any) -> Any:
  """A config value as JSON can hold it."""
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  if isinstance(value, (list, tuple)):
    return [_plain(v) for v in value]
  return value


def claim(workdir: pathlib.Path, settings: dict[str, Any]) -> None:
  """Makes a workdir this run's, or goes on with one of the same settings.

  Raises:
    ValueError: It holds another run's results.
  """
  from cascades import records

  path = workdir / 'config.json'
  if path.exists():
    try:
      found = json.loads(path.read_text(encoding='utf-8'))
    except ValueError:
      raise ValueError(f'workdir: {path} is damaged; delete it.') from None
    names = sorted(
      name
      for name in set(found) | set(settings)
      if name != 'versions' and found.get(name) != settings.get(name)
    )
    if names:
      raise ValueError(
        f'workdir: {workdir} holds a run with another {", ".join(names)};'
        ' choose another --workdir, or delete it.'
      )
  records.write_text(path, json.dumps(settings, indent=2) + '\n')


class CompileClock:
  """Seconds that JAX has spent compiling since it was made."""

  def __init__(self):
    import jax

    self.seconds = 0.0

    def count(event: str, duration: float, **_):
      if event.startswith('/jax/core/compile/'):
        self.seconds += duration

    jax.monitoring.register_event_duration_secs_listener(count)


def decode_curve(
  config, checkpoints, task, examples, method, leniences, clock
) -> Iterator[list]:
  """Records of one method on one task; a list for every batch of prompts."""
  from cascades import records, sampler

  verifier, drafter = checkpoints
  plain = {'verifier_only': verifier, 'drafter_only': drafter}.get(method)
  if plain:
    # The two baselines are what they are measured against: plain decoding.
    verifier, drafter = plain, None
  decoder = sampler.Sampler(
    verifier,
    drafter,
    method=method,
    gamma=0 if plain else config.gamma,
    temperature=config.temperature,
  )
  size = min(config.batch_size, len(examples))
  for batch in itertools.batched(examples, size):
    # The last batch is filled up, so that it compiles nothing of its own.
    full = [*batch, *[batch[0]] * (size - len(batch))]
    start, compiled = time.perf_counter(), clock.seconds
    curve = decoder.sample_curve(
      [e.prompt for e in full],
      leniences or (0.0,),
      max_new_tokens=task.max_new_tokens,
      seed=config.seed,
    )
    wall = time.perf_counter() - start - (clock.seconds - compiled)
    share = wall / (len(batch) * len(curve))
    done = []
    for lenience, answers in zip(leniences or (math.nan,), curve, strict=True):
      for example, answer in zip(batch, answers, strict=False):
        scores = dict(task.score(answer.text, example.reference))
        counts = dict(answer.counts)
        if method == 'drafter_only':
          counts |= {
            'verifier_calls': 0,
            'drafter_calls': counts['verifier_calls'],
          }
        if decoder.method.rule is None:
          counts['deferred'] = None
        done.append(
          records.Record(
            task=task.name,
            method=method,
            lenience=lenience,
            gamma=decoder.gamma,
            temperature=decoder.temperature,
            id=example.id,
            prompt=example.prompt,
            text=answer.text,
            reference=example.reference,
            tokens=answer.tokens,
            pieces=answer.pieces,
            sources=answer.sources,
            quality=scores[task.metric],
            scores=scores,
            wall_s=share,
            **counts,
          )
        )
    yield done


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  if _CONFIG.value is None:
    raise app.UsageError(
      '--config: name a config, such as --config=configs/quickstart.py.'
    )
  config = _CONFIG.value
  flag = flags.FLAGS['config']
  path = pathlib.Path(config_flags.get_config_filename(flag))
  chosen = curves(
    config, cli.load_config_module(path), config_flags.get_override_values(flag)
  )
  workdir = pathlib.Path(_WORKDIR.value or pathlib.Path('runs') / path.stem)
  run(config, chosen, workdir)


def run(config, chosen, workdir: pathlib.Path) -> None:
  """Runs a sweep in a workdir, or what of it is missing there."""
  import jax

  from cascades import (
    costs,
    load_model,
    methods,
    metrics,
    records,
    report,
    sampler,
  )
  from cascades.tasks import TASKS

  # Whatever the user can get wrong is looked at before a model is loaded.
  for name in config.tasks:
    if name not in TASKS:
      raise ValueError(
        f'tasks: no task {name!r}; there are {", ".join(TASKS)}.'
      )
  for name in ('num_examples', 'batch_size'):
    if config[name] < 1:
      raise ValueError(f'{name}: {config[name]} will not do; give 1 or more.')
  for method, leniences in chosen:
    for lenience in leniences or (0.0,):
      sampler.check_options(
        method=method,
        lenience=lenience,
        gamma=config.gamma,
        temperature=config.temperature,
      )
  chosen = [(methods.get_method(m).name, ls) for m, ls in chosen]
  cli.make_folder(workdir)

  bar = cli.progress(len(chosen) * len(config.tasks), 'loading the models')
  checkpoints = load_model(config.verifier), load_model(config.drafter)
  sampler.check_pair(*checkpoints)
  fields = {name: _plain(value) for name, value in config.items()}
  fields |= {
    'method': [method for method, _ in chosen],
    'lenience': [_plain(leniences) for _, leniences in chosen],
    'device': jax.devices()[0].device_kind,
    'versions': cli.versions(),
  }
  claim(workdir, fields)
  costs_path = workdir / 'costs.json'
  if not costs_path.exists():
    bar.set_description('measuring unit costs')
    measured = costs.measure(*checkpoints, gammas=[config.gamma])
    records.write_text(costs_path, measured.to_json())
  clock, paths = CompileClock(), []
  for task in (TASKS[name] for name in config.tasks):
    examples = list(
      task.load(
        split='test', seed=config.seed, num_examples=config.num_examples
      )
    )
    for method, leniences in chosen:
      bar.set_description(f'{task.name} {method}')
      paths.append(workdir / 'records' / f'{task.name}-{method}.jsonl')
      if not paths[-1].exists():
        batches = decode_curve(
          config, checkpoints, task, examples, method, leniences, clock
        )
        done = [record for batch in batches for record in batch]
        # A point's examples together, in their own order.
        done.sort(key=lambda r: (leniences or (r.lenience,)).index(r.lenience))
        records.write(paths[-1], done)
      bar.update()
  bar.close()
  frame = metrics.summarise(
    itertools.chain.from_iterable(map(records.read, paths)),
    metrics.Costs.from_json(costs_path.read_text()),
  )
  records.write_text(workdir / 'summary.csv', frame.to_csv(index=False))
  page = report.write_report(workdir)
  shown = metrics.best_points(frame)[
    'task method lenience quality rejection_rate block_efficiency'
    ' relative_latency'.split()
  ]
  print(
    "\nEach method's fastest point at the verifier's quality, else its best:"
  )
  print(
    shown.to_string(
      index=False,
      na_rep='-',
      float_format='{:.3f}'.format,
      formatters={'lenience': '{:g}'.format},
    )
  )
  print(f'All points: {workdir / "summary.csv"}\nReport:     {page}')


if __name__ == '__main__':
  cli.run(main)
