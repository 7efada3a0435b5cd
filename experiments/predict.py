"""Predicts whether a drafter pays, under which rule, gamma and batch.

Command: python -m experiments.predict --task=word_problems
Shows: the speed-up of strict decoding in a sentence, then each rule and
lenience at its best gamma: acceptance, distance to the verifier (at temperature
0 the share of tokens that differ) and modelled speed-up at batch 1 and 8.

The verifier answers prompts of --data, --task or --prompt, and each lossy rule
some of them at three leniences, which correct its points. Strict decoding pays
if acceptance, the same at every position, is above break-even.
"""

import itertools
import json
import pathlib
import time
from typing import Any

from absl import app, flags

from cascades import files
from cascades.arguments import options_of
from cascades.config import DecodingConfig
from experiments import cli
from experiments.sweeps import fields

_FLAGS = flags.FLAGS
for _name, _help in {
  'task': 'Task: a name, or lm_eval:NAME.',
  'data': 'File of prompts, as for a sweep.',
  'costs': "A sweep's costs.json, of batch 1; by default measured here.",
  'json': 'File that receives all points.',
  'figure': 'Figure to draw: .svg or .png.',
}.items():
  flags.DEFINE_string(_name, None, _help)
flags.register_validator(
  'figure', lambda x: not x or x.endswith(('.svg', '.png')), 'no .svg or .png'
)
flags.DEFINE_multi_string('prompt', None, 'Text to continue.')
flags.DEFINE_multi_string('method', None, 'Method; by default five.')
flags.DEFINE_multi_float('lenience', None, 'Lenience of the methods.')
flags.DEFINE_multi_integer('gamma', [*range(1, 17)], 'Gamma.', lower_bound=1)
flags.DEFINE_integer('answers', None, 'Answers; by default of 3,000 tokens.', 1)
flags.DEFINE_integer('max_new_tokens', None, "Answer limit; else the task's.")
flags.DEFINE_enum('verification', 'token', ['token', 'block'], 'Verification.')
flags.DEFINE_bool('why', False, 'Says why acceptance is low.')
_STEPS = 'decoding', 'unit costs', 'prediction'
_MODELS = 'verifier drafter dtype chat seed'.split()
_DECODING = 'temperature top_k top_p gate draft cache_length batch_size'.split()
_DECLARED = options_of(DecodingConfig) | options_of(fields.SweepConfig)
cli.define_options({name: _DECLARED[name] for name in (*_MODELS, *_DECODING)})


def _values(*names: str) -> dict[str, Any]:
  return {name: _FLAGS[name].value for name in names}


def _prompts(count: int) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
  """Returns prompts, the options of their answers, and their source."""
  from experiments import records, tasks
  from experiments.sweeps import plan

  if sum(map(bool, _values('task', 'data', 'prompt').values())) != 1:
    raise app.UsageError(
      'prompt: give prompts by one of --data=mine.jsonl, --task=word_problems'
      " and --prompt='Hello'."
    )
  request = dict(seed=_FLAGS.seed, apply_chat_template=_FLAGS.chat)
  request['max_new_tokens'] = _FLAGS.max_new_tokens or 128
  if _FLAGS.prompt:
    prompts = itertools.islice(itertools.cycle(_FLAGS.prompt), count)
    return [*prompts], request, _values('prompt')
  config = _values(*_MODELS) | {'file': {'path': _FLAGS.data or ''}}
  config |= dict(tasks=(_FLAGS.task or tasks.FILE,), num_examples=count)
  config |= dict(task=_values('max_new_tokens'), batch_size=1)
  task, *more = plan.configured_tasks(config).values()
  if more:
    raise ValueError(f'task: {_FLAGS.task} is several tasks; give one of them.')
  examples, data = plan.load_examples(config, task)
  data |= {'task': task.name, 'hash': records.hash_examples(examples)}
  request |= dict(stop_strings=task.stop_strings)
  request |= dict(max_new_tokens=task.max_new_tokens)
  return [x.prompt for x in examples], request, data


def _write(facts: dict[str, Any], frame: Any) -> None:
  """Writes all points, and a figure with a panel for each batch."""
  from experiments.reports import figure, tables

  if _FLAGS.json:
    facts |= {'versions': cli.versions(), 'points': frame.to_dict('records')}
    text = json.dumps(files.plain(facts), indent=1, allow_nan=False)
    files.write_text(_FLAGS.json, text + '\n')
  if _FLAGS.figure:
    styles = tables.styles({name: name for name in frame.method})
    batches = [f'batch {batch}' for batch in frame.batch]
    frame = frame.assign(variant=frame.method, task=batches)
    columns = 'total_variation', 'speedup'
    picture = figure.draw(figure.prediction, columns, frame, styles)
    path = pathlib.Path(_FLAGS.figure)
    is_png = path.suffix == '.png'
    files.write_bytes(path, picture.png if is_png else picture.wide.encode())


def _causes(pair: Any, texts: Any, prompts: Any) -> list[str]:
  """Returns causes of low acceptance, and tokens that are rejected."""
  from experiments import doctor

  plain = [*map(pair.encode, prompts[: len(texts)])] if _FLAGS.chat else None
  causes, rejected = doctor.diagnose(pair, texts, plain)
  sentences = [*causes.values()] or ['No fault is visible.']
  table = rejected.to_string(float_format='{:.3f}'.format)
  return ['', 'Why is acceptance low?', *sentences, '', table]


def main() -> None:
  """Runs the command."""
  from cascades import decisions, methods
  from cascades.sampler import predicting, sampler
  from experiments import measuring
  from experiments.records import unit_costs
  from experiments.sweeps import prediction

  for path in filter(None, (_FLAGS.json, _FLAGS.figure)):
    cli.make_folder(pathlib.Path(path).parent)
  leniences = sorted({*(_FLAGS.lenience or predicting.LENIENCES)})
  names = map(methods.get_method, _FLAGS.method or predicting.RULES)
  rules = {method.name: leniences for method in names}
  decoding = _values('verification', *_DECODING) | {'gamma': max(_FLAGS.gamma)}
  costs: dict[int, unit_costs.Costs] = {}
  if _FLAGS.costs:
    text = files.read_bytes(pathlib.Path(_FLAGS.costs), 'costs', 'give another')
    costs[1] = unit_costs.CostMeasurements.from_json(text).costs
  prompts, request, data = _prompts(_FLAGS.answers or prediction.GOAL[1])
  pair = sampler.Sampler(
    _FLAGS.verifier,
    _FLAGS.drafter,
    config=DecodingConfig(**decoding),
    dtype=_FLAGS.dtype,
  )
  if not _FLAGS.method and not sampler.is_language_model(pair.bound_drafter):
    # Strict decoding alone, which is always predicted.
    rules = {}
  clock = measuring.CompileClock()
  marks = [time.perf_counter()]
  args = pair, prompts, rules, _FLAGS.answers
  texts, own_texts = prediction.decode_texts(*args, **request)
  marks.append(time.perf_counter() - clock.seconds)
  costs = costs or prediction.measure_costs(pair, _FLAGS.gamma)
  marks.append(time.perf_counter() - clock.seconds)
  cli.say('predicting')
  options = dict(rules=rules, gammas=_FLAGS.gamma, own_texts=own_texts)
  predicted, frame = prediction.run(pair, texts, costs, **options)
  marks.append(time.perf_counter() - clock.seconds)
  steps = zip(_STEPS, itertools.pairwise(marks), strict=True)
  seconds = {name: end - start for name, (start, end) in steps}
  seconds['compiling'] = clock.seconds
  read = f'Read: {len(texts)} answers of {predicted.num_positions} tokens'
  if not _FLAGS.answers and predicted.num_positions < prediction.GOAL[1]:
    read += ', all that the data gives'
  print(
    f'{prediction.sentence(frame)}\n\n{prediction.table(frame)}\n',
    f'{read}.',
    'To measure quality: python -m experiments.sweep with these models and'
    ' --config=configs/your_data.py.',
    *(_causes(pair, texts, prompts) if _FLAGS.why else ()),
    sep='\n',
  )
  cli.say(', '.join(f'{step} {x:.1f} s' for step, x in seconds.items()))
  facts = predicted._asdict() | dict(
    models=_values(*_MODELS),
    hashes=decisions.weights(pair.verifier, pair.bound_drafter),
    decoding=decoding,
    data=data,
    request=request,
    costs={batch: unit.model_dump() for batch, unit in costs.items()},
    seconds=seconds,
  )
  _write(facts, frame)


if __name__ == '__main__':
  cli.run(main)
