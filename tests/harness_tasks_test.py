"""Tasks of lm-evaluation-harness in sweeps, against the harness itself."""

import json
import sys

import pytest
import small

pytest.importorskip('lm_eval', reason='lm-evaluation-harness is not installed')

import lm_eval
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager

from experiments import records, sweep, tasks
from experiments.sweeps import curve_plan, plan
from experiments.tasks import harness_tasks

_WORDS = {
  '4302': 'four thousand three hundred two',
  '77': 'seventy-seven',
  '918': 'nine hundred eighteen',
  '60': 'sixty',
  '365': 'three hundred sixty-five',
  '12': 'twelve',
}
_SHOTS = 'zero one two three four five six seven eight nine ten eleven twelve'
# What every task here begins with; no task of its own, nor called as YAML is.
_COMMON = """
dataset_path: json
dataset_kwargs:
  cache_dir: {root}/cache
  data_files: {{test: {root}/test.jsonl, train: {root}/train.jsonl}}
test_split: test
doc_to_text: "The number {{{{number}}}} in words:"
doc_to_target: "{{{{words}}}}"
"""
_TASKS = {
  # Worked examples, a description, two stop texts and two filters.
  'filtered': r"""
include: common
task: words_filtered
tag: words_tag
training_split: train
num_fewshot: 2
description: "Numbers in words.\n\n"
generation_kwargs: {until: ["\n", " hundred"], max_gen_toks: 24}
filter_list:
  - name: first-word
    filter: [{function: regex, regex_pattern: "(\\w+)"}, {function: take_first}]
  - name: all-words
    filter: [{function: remove_whitespace}, {function: take_first}]
metric_list: [{metric: exact_match, ignore_case: true}]
""",
  # The quality is the first metric that is a mean, if there is one.
  'bleu': r"""
include: common
task: words_bleu
num_fewshot: 0
generation_kwargs: {until: ["\n"], max_gen_toks: 24}
metric_list: [{metric: bleu}, {metric: exact_match}]
""",
  'group': """
group: words_group
task: [words_bleu, words_filtered]
""",
}


def _write(root, tasks):
  # One reference is not what any model here answers.
  words = _WORDS | {'918': 'nine hundred and eighteen'}
  rows = [dict(number=n, words=w) for n, w in words.items()]
  shots = [dict(number=str(i), words=w) for i, w in enumerate(_SHOTS.split())]
  for name, lines in (('test', rows), ('train', shots)):
    text = '\n'.join(map(json.dumps, lines))
    (root / f'{name}.jsonl').write_text(text)
  (root / 'common').write_text(_COMMON.format(root=root))
  for name, text in tasks.items():
    (root / f'{name}.yaml').write_text(text)
  return root


def _load(folder, name=''):
  """The one task of a file of a folder, or of the folder."""
  spec = f'lm_eval:{folder}' + (f'/{name}.yaml' if name else '')
  (task,) = harness_tasks(spec).values()
  return task


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return _write(tmp_path_factory.mktemp('tasks'), _TASKS)


class _Canned(TemplateLM):
  """A model whose answers are the same for the same prompt."""

  eot_token_id = 0

  def __init__(self):
    super().__init__()
    # All prompts with the task's options, in order.
    self.requests = []

  tok_encode = _loglikelihood_tokens = loglikelihood_rolling = None

  def generate_until(self, requests, disable_tqdm=False):
    self.requests += [request.args for request in requests]
    return [_answer(request.args[0]) for request in requests]


def _answer(prompt):
  """Returns the right words, except that long ones lack their end."""
  number = prompt.rpartition('The number ')[2].partition(' ')[0]
  return f' {_WORDS[number]}'[:20]


def _evaluate(model, folder, names, **options):
  manager = TaskManager(include_path=folder, include_defaults=False)
  return lm_eval.simple_evaluate(
    model, tasks=names, task_manager=manager, bootstrap_iters=0, **options
  )


def _scores(task, filter_name, model, results):
  """Checks prompts against the harness's; returns scores and its samples."""
  examples = list(task.load(num_examples=5))
  assert [(x.prompt, task.stop_strings) for x in examples] == [
    (prompt, tuple(options['until']))
    for prompt, options in model.requests[: len(examples)]
  ]
  scores = [task.score_example(_answer(x.prompt), x) for x in examples]
  samples = results['samples'][task.inner.task_name]
  return scores, [x for x in samples if x['filter'] == filter_name]


@pytest.mark.parametrize('filter_name', ['first-word', 'all-words'])
def test_prompts_filters_scores_are_the_harness_s(folder, filter_name, capsys):
  spec = f'lm_eval:{folder}/filtered.yaml'
  is_first = filter_name == 'first-word'
  spec += '' if is_first else f'@{filter_name}'
  ((name, task),) = harness_tasks(spec).items()
  # The first filter has no need of a name.
  assert name == 'lm_eval:words_filtered' + ('' if is_first else '@all-words')
  assert (task.stop_strings, task.max_new_tokens) == (('\n', ' hundred'), 24)
  model = _Canned()
  results = _evaluate(model, folder, ['words_filtered'], limit=5)
  scores, samples = _scores(task, filter_name, model, results)
  assert [x['quality'] for x in scores] == [x['exact_match'] for x in samples]
  _, data = plan.load_examples(small.config(), task)
  assert '|metric:exact_match|mean' in data['scorer']
  assert (data['metric'], data['scale']) == ('quality', 1.0)
  # Worked examples, and none of them if the sweep says so.
  prompt = next(task.load()).prompt
  assert prompt.startswith('Numbers in words.\n\nThe number ')
  assert prompt.count('The number') == 3
  capsys.readouterr()
  bare = next(task.load(shots=0)).prompt
  said = 'have 0 worked examples; the task declares 2,'
  assert said in capsys.readouterr().err
  assert bare == 'Numbers in words.\n\nThe number 4302 in words:'
  assert next(task.load()).prompt == prompt
  assert 'task.shots' not in capsys.readouterr().err


def test_halves_share_no_document_and_keep_their_prompts(folder):
  task = _load(folder, 'filtered')
  whole = list(task.load())
  parts = [list(task.load(split=half)) for half in ('choose', 'report')]
  assert len(whole) == len({x.id for x in whole}) == 6
  assert sum(map(len, parts)) == 6
  # Worked examples are drawn for one document after another.
  assert all(x in whole for part in parts for x in part)
  assert list(task.load(split='report', num_examples=1)) == parts[1][:1]


def test_documents_that_repeat_others_are_left_out(tmp_path, capsys):
  lines = (_write(tmp_path, _TASKS) / 'test.jsonl').read_text().splitlines()
  # The harness draws other worked examples for a copy.
  (tmp_path / 'test.jsonl').write_text('\n'.join(lines[:1] * 2 + lines * 2))
  task = _load(tmp_path, 'filtered')
  ids = [x.id.partition('-')[0] for x in task.load(num_examples=3)]
  assert ids == [f'lm_eval:words_filtered/test/{i}' for i in (0, 3, 4)]
  said = 'tasks: 2 of 5 documents of lm_eval:words_filtered repeat the prompt'
  assert said in capsys.readouterr().err
  parts = [list(task.load(split=half)) for half in ('choose', 'report')]
  assert len({x.prompt[-40:] for part in parts for x in part}) == 6
  assert sum(map(len, parts)) == 6


def test_a_score_may_be_a_little_beyond_its_limits(folder, monkeypatch):
  task = _load(folder, 'filtered')
  example = next(task.load())
  for value, quality in ((1 + 1e-7, 1), (-1e-7, 0), (0.5, 0.5)):
    values = {'exact_match': value}
    process = lambda *_, values=values: values  # noqa: E731
    monkeypatch.setattr(task.inner, 'process_results', process)
    assert task.choose_metric() == 'exact_match'
    assert task.score_example('', example)['quality'] == quality
  values['exact_match'] = 1.01
  with pytest.raises(ValueError, match=r'^exact_match must be from 0 to 1'):
    task.score_example('', example)


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('doc_to_text: !<!functio%6E> a.b', "own.yaml is damaged or .*'!function"),
    ('metric_list: [{metric: ./evil}]', 'cannot be .*/evil is a metric of the'),
    ('metric_list: [{metric: acc, hf_evaluate: true}]', 'cannot .* the hub'),
    ('include: [common, evil.inc]', "evil.inc is damaged or names .*'!func"),
    ('include: nowhere', 'nowhere is damaged .*No such file'),
    ('num_fewshot: 0', 'cannot be loaded .*(JSON|row|char|test.jsonl)'),
    ('include: 5', 'own.yaml is damaged .*not iterable'),
    ('doc_to_image: "[1]"', 'has the output .* without images'),
    ('output_type: loglikelihood_rolling', 'has the output type loglikeli'),
    ('unsafe_code: true', 'has programs of models as answers'),
    ('repeats: 8', 'has the output .* and 8 answers per prompt'),
    ('doc_to_text: "{{nothing}}"', "cannot be loaded .*'nothing' is undefined"),
    ('doc_to_text: "{{ 1.__class__.__mro__ }}"', 'cannot be loaded .*unsafe'),
    ('filter_list: [{name: a, filter: [{function: b}]}]', 'cannot be loaded'),
    ('metric_list: [{metric: bypass}]', 'has no metric that is a mean over'),
    ('metric_list: [{metric: bleu}]', 'has no metric that is a mean over'),
    ('generation_kwargs: {num_beams: 4}', "generation_kwargs: 'num_beams'"),
  ],
)
def test_unusable_yaml_is_one_sentence(tmp_path, text, message):
  _write(tmp_path, {'own': f'include: common\ntask: own\n{text}\n'})
  (tmp_path / 'evil.inc').write_text('process_docs: !function evil.run')
  if 'test.jsonl' in message:
    (tmp_path / 'test.jsonl').write_text('{"number": ')
  with pytest.raises(ValueError, match=f'^(tasks: .*)?{message}') as e:
    _load(tmp_path, 'own')
  assert '\n' not in str(e.value)


def test_no_code_is_imported_before_it_is_refused(tmp_path, monkeypatch):
  # A module that runs a metric of the hub as it is imported, and one of a group
  # of groups. A folder of data does not hide them.
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'longproc').mkdir()
  (tmp_path / 'longproc/test.jsonl').touch()
  for name in ('humaneval_plus', 'longproc'):
    with pytest.raises(ValueError, match='has programs of models as answers'):
      harness_tasks(f'lm_eval:{name}')
  assert not [x for x in sys.modules if 'humaneval' in x or 'longproc' in x]
  beside = 'task: beside\ndoc_to_text: !function a.b'
  _write(tmp_path, {'own': 'group: own\ntask: [beside]', 'beside': beside})
  with pytest.raises(ValueError, match=r'beside\.yaml is damaged or'):
    _load(tmp_path, 'own')


def test_names_and_options_of_a_task_of_the_harness(folder, capsys):
  both = ['lm_eval:words_bleu', 'lm_eval:words_filtered']
  for path in (folder, folder / 'group.yaml'):
    assert sorted(harness_tasks(f'lm_eval:{path}')) == both
  task = _load(folder, 'bleu')
  assert next(task.load(shots=5)) == next(task.load())
  line = 'task.shots=5: prompts of lm_eval:words_bleu have 0 worked examples;'
  assert line in capsys.readouterr().err
  with pytest.raises(ValueError, match=r'^task\.path: cannot be combined with'):
    next(task.load(path='x'))
  with pytest.raises(ValueError, match=r'^split: must be one of test, choose,'):
    next(task.load(split='train'))
  for name, message in (
    ('filtered.yaml@x', r"no filter 'x'; choose one of first-word"),
    ('nowhere', 'is not known, or'),
  ):
    with pytest.raises(ValueError, match=f'^tasks: .*{message}'):
      harness_tasks(f'lm_eval:{folder}/{name}')


def test_without_the_harness_a_sentence_names_the_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, 'experiments.tasks.harness', None)
  monkeypatch.delattr(tasks, 'harness', raising=False)
  message = r"^tasks: lm-evaluation-harness is not .*\[eval\]' in"
  with pytest.raises(ValueError, match=message):
    plan.configured_tasks(small.config(tasks=('lm_eval:gsm8k',)))


@pytest.mark.slow
def test_a_sweep_scores_as_the_harness_with_the_adapter(tmp_path):
  from cascades.contrib.lm_eval import CascadesLM

  names = 'words_bleu', 'words_filtered'
  fields = dict(verifier='tiny-verifier', drafter='tiny-drafter')
  fields |= dict(method='token_v3', gamma=4, temperature=0.0)
  folder = _write(tmp_path, _TASKS)
  specs = (f'lm_eval:{folder}/{x[6:]}.yaml' for x in names)
  config = small.config(tasks=tuple(specs), num_examples=6, **fields)
  config.lenience = (0.3,)
  sweep.run(config, curve_plan.plan_curves(config, None, {}), tmp_path / 'run')
  model = CascadesLM(**fields | dict(lenience=0.3, batch_size=3))
  results = _evaluate(model, folder, list(names))
  examples = records.read_examples(tmp_path / 'run')
  swept = records.read_all(tmp_path / 'run')
  for name in names:
    rows = [x for x in results['samples'][name] if x['filter'] != 'all-words']
    task = f'lm_eval:{name}'
    found = [x for x in swept if (x.task, x.lenience) == (task, 0.3)]
    # The same tokens make the same texts.
    assert [x.text for x in found] == [x['resps'][0][0] for x in rows]
    prompts = [examples[task][x.id].prompt for x in found]
    assert prompts == [x['arguments'][0][0] for x in rows]
    assert [x.quality for x in found] == [x['exact_match'] for x in rows]
