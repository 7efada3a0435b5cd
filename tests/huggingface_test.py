"""Folders that are written for transformers, and read again."""

import dataclasses
import shutil

import conftest
import jax
import launching
import pytest
import small
from absl import flags
from absl.testing import flagsaver
from fixtures import gguf_writer
from small import FIXTURES, load, read_json, same

import cascades
from cascades.models import (
  checkpoints,
  tensor_files,
  tokenizers,
)
from cascades.sampler import scoring
from cascades.verification_config import DRAFT
from experiments import export

_GENERATION = 'generation_config.json'


def test_a_large_model_is_written_and_read_in_parts(tmp_path, monkeypatch):
  checkpoint = load(_FOLDERS[0])
  monkeypatch.setattr(checkpoints, '_SHARD_BYTES', 20_000)
  checkpoints.save_model(tmp_path, checkpoint)
  index = read_json(tmp_path / tensor_files.INDEX)
  parts = {x.name for x in tmp_path.glob('*.safetensors')}
  assert parts == {*index['weight_map'].values()}
  assert len(parts) > 2
  same(load(tmp_path).params, checkpoint.params)
  monkeypatch.undo()
  checkpoints.save_model(tmp_path, checkpoint)
  assert [x.name for x in tmp_path.glob('*.safetensors*')] == [
    'model.safetensors'
  ]


def test_a_gate_by_columns_is_written_by_rows(tmp_path):
  # As gemma's own Gemma 2 2B has it.
  rows = checkpoints.load_model(FIXTURES / 'hf_gemma2').unpack()
  config = dataclasses.replace(
    rows.model.module.config, transpose_gating_einsum=False
  )
  model = dataclasses.replace(
    rows.model, module=dataclasses.replace(rows.model.module, config=config)
  )
  params = jax.tree_util.tree_map_with_path(
    lambda path, x: x.mT if path[-1].key == 'gating_einsum' else x, rows.params
  )
  columns = checkpoints.Checkpoint(model, params, rows.tokenizer)
  for checkpoint in columns, columns.pack():
    checkpoints.save_model(tmp_path, checkpoint)
    read = checkpoints.load_model(tmp_path).unpack()
    assert read.model == rows.model
    same(read.params, rows.params)


@pytest.mark.parametrize(
  ('said', 'stops'),
  [
    ({}, (1,)),
    ({_GENERATION: [1, 40]}, (1, 40)),
    ({'config.json': [1, 40], _GENERATION: 41}, (1, 40, 41)),
  ],
)
def test_a_folder_says_where_answers_end(said, stops, tmp_path):
  checkpoints.save_model(tmp_path, load('hf_gemma3'))
  tensor_files.write_json(tmp_path / _GENERATION, {'suppress_tokens': [5, 9]})
  for name, ids in said.items():
    fields = read_json(tmp_path / name) | {'eos_token_id': ids}
    tensor_files.write_json(tmp_path / name, fields)
  read = checkpoints.load_model(tmp_path)
  # Written, and read again.
  checkpoints.save_model(tmp_path / 'again', read)
  file = tmp_path / 'a.gguf'
  gguf_writer.save_gguf(file, read)
  for checkpoint in (
    read,
    *map(checkpoints.load_model, (tmp_path / 'again', file)),
  ):
    # A file of llama.cpp's has two.
    assert checkpoint.tokenizer.stops in (stops, (1, *stops[-1:]))
    assert checkpoint.tokenizer.suppress_tokens == (5, 9)


def test_tokens_that_a_folder_suppresses_are_in_no_answer(tmp_path):
  verifier, drafter = small.pair()
  folder = shutil.copytree(verifier, tmp_path / 'model')
  options = dict(method='speed', lenience=0.0, gamma=2, temperature=1.0)
  free = small.sampler(verifier, drafter, **options)
  asked = dict(max_new_tokens=12, seed=3)
  ids = sorted({*free.sample('one', **asked).tokens} - {tokenizers.EOS})
  tensor_files.write_json(folder / _GENERATION, {'suppress_tokens': ids})
  one = small.sampler(str(folder), drafter, **options)
  answer = one.sample('one', return_state=True, **asked)
  want = free.sample('one', forbidden_tokens=ids, return_state=True, **asked)
  assert (answer.tokens, answer.logprobs) == (want.tokens, want.logprobs)
  assert ''.join(one.stream('one', **asked)) == want.text
  assert one.sample_curve(['one'], [0.0], **asked)[0][0].tokens == want.tokens
  later = one.sample('two', last_state=answer.state, **asked)
  assert not {*ids} & {*answer.tokens, *later.tokens}
  # What a request forbids takes the place of what the folder does.
  for forbidden in ([], ids[:1]):
    asked['forbidden_tokens'] = forbidden
    other = one.sample('one', **asked).tokens
    assert other == free.sample('one', **asked).tokens != answer.tokens
  # The decisions are explained, and texts have the models' probabilities.
  decided = [
    (x.uniform < x.acceptance) == (x.source == DRAFT)
    for x in cascades.explain(one, 'one', answer)
    if x.draft is not None
  ]
  assert decided == [True] * len(decided) != []
  first, second = (scoring.score(x, [([2], ids)]) for x in (one, free))
  assert first == second


@pytest.mark.parametrize(
  ('field', 'value'),
  [
    *(('suppress_tokens', [x]) for x in (64, -1, True, 'a', 1.5)),
    ('begin_suppress_tokens', [5]),
    ('bad_words_ids', [[5]]),
    *(('eos_token_id', x) for x in (['</s>'], 64, True)),
  ],
)
def test_tokens_that_no_model_has_are_refused(field, value, tmp_path):
  checkpoints.save_model(tmp_path, load('hf_gemma3'))
  tensor_files.write_json(tmp_path / _GENERATION, {field: value})
  message = conftest.refused('model', checkpoints.load_model, tmp_path)
  assert f'{tmp_path / _GENERATION}: {field}' in message
  (tmp_path / _GENERATION).write_text('[')
  message = conftest.refused('model', checkpoints.load_model, tmp_path)
  assert 'config.json: it is damaged' in message
  for nothing in (None, []):
    tensor_files.write_json(tmp_path / _GENERATION, {field: nothing})
    assert not checkpoints.load_model(tmp_path).tokenizer.suppress_tokens


# --- The launcher ---


def test_the_launcher_writes_a_model_and_no_other_over_it(tmp_path, capsys):
  flags.FLAGS.mark_as_parsed()
  folder = tmp_path / 'out'
  said = dict(model='tiny-drafter', folder=str(folder))
  with flagsaver.flagsaver(**said, dtype='bfloat16'):
    export.main()
  printed = capsys.readouterr().out
  for file in folder.iterdir():
    assert str(file) in printed
  want = checkpoints.load_model('tiny-drafter', 'bfloat16')
  same(checkpoints.load_model(folder).params, want.params)
  with (
    flagsaver.flagsaver(**said),
    pytest.raises(ValueError, match='already holds a model; choose another'),
  ):
    export.main()
  done = launching.run('experiments.export', '--model=tiny-drafter')
  assert done.returncode == 2
  assert done.stderr.startswith('error: model, folder: both must be given')


def test_what_a_folder_cannot_hold_is_refused_and_nothing_is_left(tmp_path):
  folder = tmp_path / 'out'
  model, params, tokenizer = load('tiny-drafter')
  config = dataclasses.replace(model.module.config, use_post_ffw_norm=False)
  module = dataclasses.replace(model.module, config=config)
  unknown = dataclasses.replace(model, module=module)
  restricted = model.restrict_vocab(params, [0, 1, 2, 3, 300])
  for models, options, said in (
    ((model, restricted), {}, 'a restricted vocabulary is not suppo'),
    ((model, params), {'stored': 'float16'}, r"stored: must be .* 'float16'"),
    ((unknown, params), {}, 'a Transformer with this configuration .* 3n or 4'),
  ):
    with pytest.raises(ValueError, match=said):
      checkpoints.save_model(
        folder, checkpoints.Checkpoint(*models, tokenizer), **options
      )
  assert not [*tmp_path.iterdir()]
