"""A sweep of a user's file: long prompts, a changed file, short flags."""

import json
import shutil

import pytest
import small
from absl import flags

from cascades import Conversation
from configs import common
from experiments import records, sweep
from experiments.sweeps import curve_plan, plan, prompt_lengths, worker
from experiments.tasks import Example


def _write(path, rows):
  path.write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  return str(path)


def _config(path, cache_length=4096, **fields):
  config = common.sweep(
    *('file', 'task', 'clock', 'split'),
    temperature=0,
    cache_length=cache_length,
  )
  with config.unlocked():
    config.verifier, config.drafter = small.pair()
    config.update(tasks=('file',), batch_size=4, clock=0, split='all')
    config.update(file={'path': path} | fields, task={'max_new_tokens': 8})
  return config


def _curves(config):
  return [
    curve_plan.Curve.from_config(config, 'verifier_only', ()),
    curve_plan.Curve.from_config(config, 'speed', (0.0,), gamma=4),
  ]


def _run(config, workdir):
  sweep.run(config, _curves(config), workdir)


def _names(config):
  """Names of the points of a config."""
  tasks = plan.configured_tasks(config)
  examples = {k: plan.load_examples(config, x)[0] for k, x in tasks.items()}
  points = plan.plan_points(
    config.to_dict(), _curves(config), tasks=tasks, examples=examples, facts={}
  )
  return {point.name for point in points}


def test_points_are_named_by_what_changes_records(tmp_path, monkeypatch):
  rows = [{'prompt': f'{n}', 'reference': f'{n}'} for n in range(4)]
  config = _config(_write(tmp_path / 'a.jsonl', rows), metric='exact')
  with config.unlocked():
    config.shard_size = 2
  names = _names(config)
  config.file.path = _write(tmp_path / 'b.jsonl', rows)
  assert _names(config) == names
  _write(tmp_path / 'b.jsonl', [*rows[:3], rows[3] | {'reference': 'x'}])
  assert len(_names(config) & names) == len(names) / 2
  for metric in ('chrf', 'regex:a', 'regex:b', 'scores_of_mine:score'):
    module = tmp_path / 'scores_of_mine.py'
    module.write_text('def score(answer, reference):\n  return 1\n')
    monkeypatch.syspath_prepend(tmp_path)
    config.file.metric = metric
    assert not _names(config) & names
    names |= _names(config)
  # Another source of the function makes other records.
  module.write_text('def score(answer, reference):\n  return 0.5\n')
  assert not _names(config) & names


def _lengths(too_long, prompts):
  examples = [
    Example(id=str(i), prompt=x, reference='') for i, x in enumerate(prompts)
  ]
  return prompt_lengths.fit(
    {'file': examples}, {'file': 5}, lambda x: list(str(x)), too_long
  )


def test_settings_have_no_paths_of_files():
  config = _config('https://user:secret@host/a.jsonl?token=secret')
  config.file.examples = '/home/user/b.jsonl'
  settings = plan.shared_settings(config)
  assert 'secret' not in str(settings)
  assert '/home' not in str(settings)
  assert settings['file']['prompt'] == 'prompt'
  assert config.file.examples == '/home/user/b.jsonl'


def test_prompts_that_the_cache_cannot_hold():
  prompts = ['12345', '1234567', 'abcdef']
  with pytest.raises(ValueError, match=r'^file.too_long: 2 of 3 .* 5 to.* 7'):
    _lengths('refuse', prompts)
  fitted = _lengths('drop', prompts)
  assert [x.prompt for x in fitted.examples['file']] == ['12345']
  fitted = _lengths('truncate', prompts)
  fit = {x.id: x.prompt for x in fitted.examples['file']}
  assert fit == {'0': '12345', '1': '34567', '2': 'bcdef'}
  assert fitted.messages[0].endswith('their beginnings are cut off.')
  with pytest.raises(ValueError, match=r'and no prompt is left; raise'):
    _lengths('drop', prompts[1:])
  with pytest.raises(ValueError, match=r'truncate is not supported for mess'):
    _lengths('truncate', [Conversation([('user', 'Hello')])])


def test_the_cache_of_the_pair_decides_which_prompts_are_too_long(tmp_path):
  rows = [{'prompt': 'one two ' * n} for n in (1, 200)]
  config = _config(_write(tmp_path / 'a.jsonl', rows), cache_length=64)
  tasks = plan.configured_tasks(config)
  examples = {'file': plan.load_examples(config, tasks['file'])[0]}
  pair = worker.Worker(config, _curves(config), tasks)
  with pytest.raises(ValueError, match=r'^file.too_long: 1 of 2 prompts .* 51'):
    pair.fit_prompts(examples, 'refuse')
  short, long = pair.fit_prompts(examples, 'truncate').examples['file']
  assert short.prompt == 'one two '
  assert long.prompt == ('one two ' * 200)[-len(long.prompt) :]
  decoder, _ = pair._sampler(_curves(config)[1])
  assert decoder.refusal(rows[1]['prompt'], 8)
  assert decoder.refusal(long.prompt, 8) is None
  assert decoder.refusal(f'one {long.prompt}', 8)


def test_short_flags_set_fields_or_are_refused(monkeypatch):
  values = flags.FlagValues()
  monkeypatch.setattr(sweep.flags, 'FLAGS', values)
  for name in sweep._SHORT:
    flags.DEFINE_string(name, None, '', flag_values=values)
  values(['x', '--data=a.csv', '--metric=exact', '--drafter=ngram'])
  config = common.sweep('file')
  sweep._apply_short_flags(config)
  assert (config.file.path, config.file.metric) == ('a.csv', 'exact')
  assert (config.drafter, config.verifier) == ('ngram', 'tiny-verifier')
  with pytest.raises(ValueError, match=r'^data: this config has no field file'):
    sweep._apply_short_flags(common.sweep())


@pytest.mark.slow
def test_messages_are_swept_with_the_template_of_the_model(tmp_path):
  models = []
  for name, folder in zip(('p', 'q'), small.pair(), strict=True):
    models.append(shutil.copytree(folder, tmp_path / name))
    (models[-1] / 'chat_template.jinja').write_text(
      '{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}'
      '{% if add_generation_prompt %}assistant:{% endif %}'
    )
  turns = [('user', 'one two'), ('assistant', 'three'), ('user', 'four')]
  messages = [dict(zip(('role', 'content'), x, strict=True)) for x in turns]
  answer = {'role': 'assistant', 'content': 'five'}
  rows = [{'messages': messages}, {'messages': [*messages, answer]}]
  config = _config(_write(tmp_path / 'a.jsonl', rows))
  with config.unlocked():
    config.chat, config.verifier, config.drafter = True, *map(str, models)
  _run(config, tmp_path / 'run')
  examples = records.read_examples(tmp_path / 'run')['file']
  assert {x.prompt for x in examples.values()} == {Conversation(turns)}
  assert {x.reference for x in examples.values()} == {(), 'five'}
  assert len({r.text for r in records.read_all(tmp_path / 'run')}) == 1
  assert 'user: four' in (tmp_path / 'run/report/index.html').read_text()
