"""Every config loads, documents itself, and asks for what exists."""

import functools
import json
import pathlib
import types

import launching
import ml_collections
import pandas as pd
import pytest

from cascades import methods
from cascades.arguments import options_of
from cascades.config import DecodingConfig
from configs import common, paper
from experiments import cli
from experiments.sweeps import curve_plan, plan
from experiments.sweeps.fields import SweepConfig

_ROOT = pathlib.Path(__file__).parent.parent / 'configs'
_RESULTS = _ROOT.parent / 'experiments/results'
# By name, such as 'quickstart'; what they share is none.
_CONFIGS = {
  path.stem: path
  for path in sorted(_ROOT.glob('*.py'))
  if path.stem != 'common'
}
# Variants of configs, by argument.
_VARIANTS = 'gemma3_270m:t05', 'engines:three', 'engines:270m'
# Of a config that is silent, so that the options are the usual ones.
_curve = functools.partial(curve_plan.Curve.from_config, {})
# Arguments of configs/paper.py.
_OF_PAIRS = [f'{pair},{task}' for pair in paper.PAIRS for task in paper.TASKS]


def _module(name):
  return cli.load_config_module(_CONFIGS[name])


def _load(name):
  """The module and fields of a config, a variant or an argument of paper.py."""
  if name in _OF_PAIRS:
    name = f'paper:{name}'
  name, *argument = name.split(':')
  module = _module(name)
  return module, module.get_config(*argument)


@pytest.mark.parametrize('name', [*_CONFIGS, *_VARIANTS])
def test_a_config_is_documented(name):
  module, config = _load(_OF_PAIRS[0] if name == 'paper' else name)
  assert isinstance(config, ml_collections.ConfigDict)
  path, _, argument = name.partition(':')
  assert f'--config=configs/{path}.py' in module.__doc__
  assert 'Shows:' in module.__doc__
  if argument:
    assert f'`configs/{path}.py:{argument}`' in module.__doc__
    with pytest.raises(ValueError, match=f"must be .*{argument}.* got 'x'"):
      module.get_config('x')


_COMMITTED = {
  'quickstart_greedy': 'quickstart',
  'gemma3_270m_t05': 'gemma3_270m:t05',
  'engines_t05': 'engines',
  'engines_270m': 'engines:270m',
  'engines_270m_t05': 'engines:270m',
}
# Results whose configs are in git history.
_PAST = {'tuned_gamma'}


@pytest.mark.parametrize(
  'folder',
  sorted({path.parent.name for path in _RESULTS.glob('*/summary.csv')} - _PAST),
)
def test_a_config_has_the_points_of_its_committed_results(folder):
  module, config = _load(_COMMITTED.get(folder, folder))
  said = json.loads((_RESULTS / folder / 'config.json').read_text())
  config.temperature = said['temperature']
  for name in ('num_examples', 'seed', 'verifier', 'drafter', 'batch_size'):
    assert config[name] == said[name]
  frame = pd.read_csv(_RESULTS / folder / 'summary.csv')
  # These are counted from the rows of another verification.
  frame = frame[frame.verification != 'sequential']
  frame = frame.rename(columns={'bonus_from': 'bonus'})
  names = 'method lenience gamma verification gate bonus drafts'.split()
  points = {
    (method, repr(lenience), *options)
    for method, lenience, *options in frame[names].values
  }
  wanted = {
    (curve.method, repr(lam), *(getattr(curve.config, x) for x in names[2:]))
    for curve in curve_plan.complete_curves(
      curve_plan.plan_curves(config, module, {}), SweepConfig.convert(config)
    )
    for lam in map(float, curve.leniences or ('nan',))
  }
  assert points == wanted


@pytest.mark.parametrize(
  'name',
  [
    *('quickstart', 'specialist', 'your_data', 'engines', 'engines:three'),
    *('gemma3_270m', 'gemma3_270m:t05', *_OF_PAIRS),
  ],
)
def test_a_sweep_asks_for_what_can_be_run(name):
  module, config = _load(name)
  chosen = curve_plan.plan_curves(config, module, {})
  curve_plan.complete_curves(chosen, SweepConfig.convert(config))
  assert list(plan.configured_tasks(config)) == list(config.tasks)
  for curve in chosen:
    assert list(curve.leniences) == sorted(curve.leniences)
    rule = getattr(methods.METHODS.get(curve.method, None), 'rule', None)
    if name in _OF_PAIRS and rule:
      method = methods.METHODS[curve.method]
      ends = method.strict, method.drafter_only
      assert (curve.leniences[0], curve.leniences[-1]) == ends


def _planned(name, **given):
  """Curves of a config by name, with fields of the command line."""
  module = _module(name)
  config = module.get_config()
  with config.unlocked():
    config.update(given)
  curves = curve_plan.plan_curves(config, module, given)
  curve_plan.complete_curves(curves, SweepConfig.convert(config))
  found = {curve.name: curve for curve in curves}
  assert len(found) == len(curves)
  return found


def test_fields_of_the_command_line_win():
  # A number of examples is that of every curve.
  found = _planned('quickstart', num_examples=20)
  assert found['speed gamma 4'].leniences == (0.0, 0.6, 0.95)
  assert 'token_v2 gamma 4' in found
  # The point that both curves have is left to the one with all examples.
  found = _planned('quickstart', gamma=12)
  assert found['token_v3 gamma 12'].leniences == (0.95,)
  assert 0.95 not in found['token_v3 gamma 12 on 200'].leniences
  assert {x.config.gamma for x in found.values()} == {0, 12}
  found = _planned('quickstart', lenience=(0.25,))
  assert found['token_v3 gamma 4 on 200'].leniences == (0.25,)
  assert found['verifier_only'].leniences == ()
  # Curves that are equal now are one, with the leniences of all of them.
  found = _planned('gemma3_270m', gamma=3, verification='block')
  assert 'token_v3 gamma 3' not in found
  assert found['token_v3 block gamma 3'].leniences == (0.8,)
  assert found['sequence_mean'].config.verification == 'token'
  found = _planned('quickstart', gamma=12, num_examples=20)
  assert sorted(found['token_v3 gamma 12'].leniences) == [0.9, 0.95]
  # A method selects its curves, or is one that the sweep lacks.
  found = _planned('quickstart', method='cascade_chow', lenience=(0.25,))
  own = dict(gamma=4, num_examples=200)
  assert [*found.values()] == [_curve('chow', (0.25,), **own)]
  own = dict(verification='block', gate='processed')
  (curve,) = _planned('quickstart', method='bild', **own).values()
  assert curve == _curve('bild', (0.3,), gamma=4, **own)
  for name, leniences in (('sequence_least', (0.3,)), ('verifier_only', ())):
    (curve,) = _planned('quickstart', method=name).values()
    assert curve == _curve(name, leniences)


def _added(*curves):
  """A config's module with a sweep of its own."""
  sweep = lambda add: [add(*curve, **more) for *curve, more in curves]  # noqa: E731
  return types.SimpleNamespace(sweep=sweep)


def test_curves_take_what_they_are_not_given_from_the_config():
  # Options are missing in this config: they are the standard ones.
  config = {'gamma': 4, 'method': 'chow', 'lenience': (0.3,)}
  module = _added(
    ('cascade_tokenV3', [0.5], {'gamma': (2, 8)}),
    # One lenience needs no tuple, and none no argument.
    ('diff', 0.5, {'gate': 'processed'}),
    ('drafter_only', {'gamma': 3, 'gate': 'processed'}),
    ('always_accept', [0.5], {'bonus': 'verifier'}),
  )
  assert curve_plan.plan_curves(config, module, {}) == [
    _curve('token_v3', (0.5,), gamma=2),
    _curve('token_v3', (0.5,), gamma=8),
    _curve('diff', (0.5,), gamma=4, gate='processed'),
    _curve('drafter_only', ()),
    _curve('always_accept', (), gamma=4, bonus='verifier'),
  ]
  # The config's own options are those of curves that do not say.
  config |= {'verification': 'block', 'bonus': 'verifier', 'gamma': (1, 2)}
  module = _added(('diff', [0.5], {}))
  options = dict(verification='block', bonus='verifier')
  assert curve_plan.plan_curves(config, module, {}) == [
    _curve('diff', (0.5,), gamma=gamma, **options) for gamma in (1, 2)
  ]


def test_a_curve_that_is_not_asked_for_may_be_one_that_cannot_be():
  config = {'gamma': 4, 'method': 'chow', 'verification': 'block'}
  config |= {'lenience': (0.3,), 'temperature': 0.5}
  module = _added(('diff', [0.5], {'drafts': 2}), ('chow', [1], {}))
  with pytest.raises(ValueError, match='verifies one draft per block'):
    curve_plan.plan_curves(config, module, {'verification': 'block'})
  given = {'method': 'chow', 'verification': 'block'}
  assert curve_plan.plan_curves(config, module, given) == [
    curve_plan.Curve.from_config(config, 'chow', (1,))
  ]


def test_options_are_made_once_of_what_the_config_says():
  options = dict(temperature=0.5, cache_length=99, tree_size=7, gamma=2)
  options |= dict(top_k=3, top_p=0.5, gate='processed', bonus='verifier')
  options['draft'] = 'argmax'
  config = options | {'stop_below': 0.1, 'beam': False}
  several = dict(verification='match', drafts=3)
  # All but the curve's own, and what is set for each batch.
  own = {'method', 'lenience', 'batch_size'}
  assert {*options, *several} == options_of(DecodingConfig).keys() - own
  curve = curve_plan.Curve.from_config(config, 'opt', (0.0,), **several)
  assert curve.config == DecodingConfig(method='opt', **options | several)
  assert dict(curve.drafter_options) == {'stop_below': 0.1, 'beam': False}
  # What a curve does not read is left at its default: a tree of one draft, the
  # gate of a method without a rule, truncation where nothing is drawn.
  greedy = config | {'temperature': 0.0}
  curve = curve_plan.Curve.from_config(greedy, 'speed', (0.0,)).config
  assert (curve.tree_size, curve.top_k, curve.gate) == (None, None, 'raw')
  assert (curve.bonus, curve.draft) == ('verifier', 'sample')
  make = functools.partial(curve_plan.Curve.from_config, config)
  answers = make('sequence_mean', (0.5,), **several)
  names = 'temperature', 'cache_length', 'top_k', 'top_p'
  alone = {x: options[x] for x in names} | {'gamma': 0}
  alone = DecodingConfig(method='drafter_only', **alone)
  assert answers.config == alone
  assert answers.confidence == answers.method == 'sequence_mean'


def test_predicted_values_are_those_of_the_front():
  # Faster the more lenient, but for the last; beyond .1 with gamma 8.
  distances = {0.0: 0.0, 0.1: 0.01, 0.2: 0.2, 0.3: 0.21, 0.5: 0.4, 0.9: 0.4}
  points = pd.DataFrame(
    dict(method='opt', lenience=lenience, gamma=gamma, total_variation=x)
    | dict(speedup=(1 + 5 * x) * (1.5 if (gamma == 8) == (x > 0.1) else 1))
    for lenience, x in distances.items()
    for gamma in (2, 8)
  )
  select = functools.partial(curve_plan.select_points, points)
  config = {'gamma': 8, 'method': 'opt', 'lenience': 'predicted'}
  value, requests, opt = 'predicted', [], functools.partial(_curve, 'opt')
  module = _added(
    ('opt', value, {'gamma': value, 'num_examples': 9}),
    ('cascade_opt', value, {'gamma': 2, 'gate': 'processed'}),
    ('opt', (0.1, 0.2), {'gamma': value, 'bonus': 'verifier'}),
  )
  make = functools.partial(curve_plan.plan_curves, config, module, {})
  verifier = _curve('verifier_only', ())
  assert make(lambda *request: requests.append(request)) == [verifier]
  methods_of, leniences, gammas = zip(*requests, strict=True)
  assert {*methods_of} == {'opt'}
  assert leniences == ((value,), (value,), (0.1, 0.2))
  assert gammas == ((value,), (2,), (value,))
  assert make(select) == [
    verifier,
    opt((0.0, 0.1), gamma=2, num_examples=9),
    opt((0.2, 0.5), gamma=8, num_examples=9),
    opt((0.0, 0.2, 0.3, 0.5), gamma=2, gate='processed'),
    opt((0.1,), gamma=2, bonus='verifier'),
    opt((0.2,), gamma=8, bonus='verifier'),
  ]
  curves = curve_plan.plan_curves(config, None, {'lenience': value}, select)
  assert curves == [verifier, opt((0.0, 0.1, 0.2, 0.5), gamma=8)]
  with pytest.raises(ValueError, match='predicted: chow is not; give another'):
    select('chow', (value,), (value,))


def test_the_models_alone_are_added():
  config, decided = common.sweep(), common.sweep('decision')

  def complete(curve, config):
    return curve_plan.complete_curves([curve], SweepConfig.convert(config))

  answers, speed = _curve('sequence_mean', (0.5,)), _curve('speed', (0.0,))
  models = [_curve('verifier_only', ()), _curve('drafter_only', ())]
  assert complete(answers, config) == [*models, answers]
  # A decision compares with the verifier alone.
  assert complete(speed, config) == [speed]
  assert complete(speed, decided) == [models[0], speed]


def test_curves_that_are_there_twice_or_not_at_all_are_refused():
  config = {'gamma': 4, 'seed': 0, 'temperature': 1.0}
  module = _added(('diff', [0.1], {}), ('cascade_diff', [0.5], {}))
  chosen = curve_plan.plan_curves(config, module, {'gamma': 4})
  assert chosen == [_curve('diff', (0.1, 0.5), gamma=4)]
  complete = functools.partial(
    curve_plan.complete_curves, config=SweepConfig.convert(common.sweep())
  )
  with pytest.raises(ValueError, match=r'^sweep: must have at least one curve'):
    complete([])
  double = [
    _curve('speed', (0.0,)),
    _curve('speed', (0.0, 1.0), num_examples=9),
  ]
  few = [_curve('verifier_only', (), num_examples=9)]
  few.append(_curve('sequence_mean', (0.5,), num_examples=10))
  for curves, words in (
    (double, 'speed gamma 4 at lenience 0 is added twice'),
    ([_curve('verifier_only', ())] * 2, 'verifier_only is added twice'),
    ([_curve('chow', (0.5, 0.1, 0.5))], 'chow gamma 4 at lenience 0.5 is add'),
    (few, 'num_examples: sequence_mean on 10 selects among the answers'),
  ):
    with pytest.raises(ValueError, match=words):
      complete(curves)
  for count in (0, 1.5, True):
    with pytest.raises(ValueError, match='num_examples'):
      _curve('speed', (0.0,), num_examples=count)


@pytest.mark.parametrize(
  ('argument', 'said', 'known'),
  [
    ('', 'must be a pair and a task, such as', paper.PAIRS),
    ('gemma2_9b_2b,gsm8k', "got 'gemma2_9b_2b'", paper.PAIRS),
    ('gemma2_2b_9b,gsm8k,xsum', "got 'gsm8k,xsum'", paper.TASKS),
  ],
)
def test_what_the_paper_has_not_is_refused(argument, said, known):
  with pytest.raises(ValueError, match=said) as caught:
    paper.get_config(argument)
  assert str(caught.value).count('. ') == 0
  assert all(name in str(caught.value) for name in known)


_MISTAKEN = {
  '': 'quickstart.py takes no argument after a colon.',
  'def get_config(size):\n  return size': '{path} needs an argument after a c',
  "def get_config():\n  raise ValueError('gamma: Error: a\\n b.')": (
    'gamma: Error: a b.'
  ),
  'def get_config():\n  return len(3)': (
    "object of type 'int' has no len(); {path}, line 2); correct it or install"
  ),
  'x = len(3)': "object of type 'int' has no len(); {path}, line 1)",
}


@pytest.mark.parametrize(('code', 'said'), _MISTAKEN.items())
def test_a_mistake_in_a_config_takes_one_sentence(code, said, tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(f'{code}\n')
  named = path if code else 'configs/quickstart.py:x'
  done = launching.run('experiments.sweep', f'--config={named}')
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr.startswith('error: ')
  assert said.format(path=path) in done.stderr
  assert done.stderr.count('\n') == 1


def test_a_config_is_loaded_from_any_folder(tmp_path):
  # It finds what it shares with others, which is when it can refuse a pair.
  flag = f'--config={_CONFIGS["paper"]}:gemma2,gsm8k'
  done = launching.python('-m', 'experiments.sweep', flag, cwd=tmp_path)
  assert done.returncode == 2
  assert 'pair: must be one of' in done.stderr


def test_what_configs_share_is_a_default():
  usual, own = common.sweep(), common.sweep(ray=dict(cpus=8), gamma=(2, 4))
  assert (usual.ray.cpus, own.ray.cpus, own.ray.gpus) == (1, 8, 0)
  assert (usual.gamma, own.gamma) == (4, (2, 4))
  own.ray.gpus = 2
  assert common.sweep().ray.gpus == 0
  # An optional field is there if it is named, or given.
  assert not {'mesh', 'task'} & set(usual)
  found = common.sweep('mesh', task=dict(shots=8))
  assert set(found) == {*usual, 'mesh', 'task'}
  assert (found.mesh, found.task.shots, found.task.path) == ((1, 1), 8, '')
  for wrong, name in (
    (dict(gama=3), 'gama'),
    (dict(ray=dict(cpu=3)), 'cpu'),
    (dict(task=dict(shot=3)), 'shot'),
  ):
    with pytest.raises(KeyError, match=name):
      common.sweep(**wrong)
  with pytest.raises(KeyError, match='mash'):
    common.sweep('mash')
  with pytest.raises(TypeError):
    common.sweep(batch_size='many')


def test_results_of_every_config_lie_apart():
  named = [str(path) for path in _CONFIGS.values() if path.stem != 'paper']
  named += [f'{_CONFIGS["paper"]}:{name}' for name in _OF_PAIRS]
  for name in _VARIANTS:
    path, _, argument = name.partition(':')
    named.append(f'{_CONFIGS[path]}:{argument}')
  found = [plan.default_workdir(name) for name in named]
  assert len(set(found)) == len(named)
  names = {str(path) for path in found}
  assert {'runs/gemma3_270m/t05', 'runs/paper/gemma2_2b_9b/gsm8k'} <= names
  mine = _CONFIGS['your_data']
  named = plan.default_workdir(mine, 's3://b/d.jsonl.gz?c')
  assert str(named) == 'runs/your_data/d'
  assert str(plan.default_workdir(mine, 'my.test.csv'))[-7:] == 'my.test'
  assert str(plan.default_workdir(mine, '../..')) == 'runs/your_data'
  assert str(plan.default_workdir('/c/mine.py:/d/../b')) == 'runs/mine/d/b'
