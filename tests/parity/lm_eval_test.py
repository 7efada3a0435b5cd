"""The harness's model type, by itself and through its command line."""

import functools
import json
import os

import chat_test
import launching
import pytest
import small

pytest.importorskip('lm_eval', reason='lm-evaluation-harness is not installed')

import datasets
import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

from cascades.contrib.lm_eval import CascadesLM, Generation
from cascades.models import checkpoints
from cascades.models.chat import Conversation
from cascades.sampler import scoring

pytestmark = pytest.mark.slow
_DATA = 'tests/data/lm_eval'
_PROMPTS = [f'The number {n} in words:' for n in (4302, 77, 918, 60, 365)]
# The smaller of the bundled pair and no drafter: it compiles soonest.
_SMALL = dict(verifier='tiny-drafter', gamma=0, batch_size=4)


@functools.cache
def _lm():
  return CascadesLM(**_SMALL)


def _requests(kind, *arguments):
  return [Instance(kind, {}, args, i) for i, args in enumerate(arguments)]


def _generate(lm, *arguments):
  return lm.generate_until(_requests('generate_until', *arguments))


_DRAWN = dict(temperature=1, top_k=5, top_p=0.9)


@pytest.mark.parametrize(
  ('asked', 'processing'),
  [
    ({}, dict(temperature=0)),
    (dict(do_sample=False, temperature=0.7), dict(temperature=0)),
    (dict(temperature=0.0), dict(temperature=0)),
    (dict(temperature=0.7), dict(temperature=0.7)),
    # At the sampler's own.
    (dict(do_sample=True), {}),
    (_DRAWN | dict(do_sample=True), _DRAWN),
  ],
)
def test_a_task_is_decoded_greedily_unless_it_says_otherwise(asked, processing):
  how = Generation.from_task(asked)
  assert dict(how.processing) == processing
  assert (how.max_new_tokens, how.until) == (256, ())
  more = dict(until=['\n\n', 'Q:', ''], max_gen_toks=7)
  how = Generation.from_task(asked | more)
  # An empty one would end every answer at once.
  assert (how.max_new_tokens, how.until) == (7, ('\n\n', 'Q:'))
  assert Generation.from_task(asked | dict(until='.')).until == ('.',)


def test_greedy_answers_are_the_samplers_up_to_the_stop():
  lm = _lm()
  until = dict(until=[' hundred'], max_gen_toks=12)
  texts = _generate(lm, *[(prompt, until) for prompt in _PROMPTS])
  options = dict(gamma=0, temperature=0)
  alone = small.sampler(lm.sampler.verifier, **options, batch_size=4)
  answers = alone.sample(_PROMPTS, max_new_tokens=12)
  assert texts == [a.text.partition(' hundred')[0] for a in answers]
  assert any(' hundred' in answer.text for answer in answers)
  before = lm.counts['answers']
  # It has no use for truncation.
  assert _generate(lm, ('a', dict(top_p=0.9, max_gen_toks=2)))
  assert lm.counts['answers'] == before + 1


def test_an_answer_depends_on_its_prompt_and_the_seed_alone():
  # Hot enough for the seed to matter; two ways of asking, so two groups.
  hot = dict(temperature=3.0, max_gen_toks=12, until=[])
  cold = hot | dict(temperature=2.0)
  asked = [(p, kw) for p in _PROMPTS for kw in (hot, cold)]
  texts = _generate(_lm(), *asked)
  assert len(set(texts)) > len(_PROMPTS)
  assert _generate(_lm(), *asked[::-1]) == texts[::-1]
  assert _generate(CascadesLM(**_SMALL, seed=1), *asked) != texts
  # A task that repeats a prompt wants different answers.
  assert len(set(_generate(_lm(), *[asked[0]] * 5))) > 1


def test_likelihoods_are_those_of_the_target():
  lm = _lm()
  pairs = [('The number 60 in words:', x) for x in (' sixty', ' sixteen')]
  pairs.append(('', 'The number'))
  said = lm.loglikelihood(_requests('loglikelihood', *pairs), True)
  encode = lm.sampler.tokenizer.encode
  requests = []
  for context, continuation in pairs:
    # The space at the border belongs to the continuation's token.
    before = encode(context, add_bos=True)
    whole = encode(context + continuation, add_bos=True)
    requests.append((before, whole[len(before) :]))
  want = scoring.score(lm.sampler, requests)
  for one, score in zip(said, want, strict=True):
    assert one == (pytest.approx(score.logprob, abs=1e-5), score.is_greedy)
  assert said[0][1]
  assert said[0][0] > said[1][0]
  assert not said[1][1]


def test_rolling_likelihoods_go_on_window_by_window():
  text = 'The number 4302 in words: four thousand three hundred two'
  asked = _requests('loglikelihood_rolling', (text,), ('',))
  whole, nothing = _lm().loglikelihood_rolling(asked)
  pair = _requests('loglikelihood', ('', text))
  ((want, _),) = _lm().loglikelihood(pair, True)
  assert whole == pytest.approx(want, abs=1e-4)
  assert nothing == 0
  # Every token once, so many at a time; the last window is as long as others.
  room = 6
  short = CascadesLM(**_SMALL | dict(cache_length=room))
  ids = short.tok_encode(text)
  assert len(ids) > 2 * room
  windows = []
  for first in range(1, len(ids), room - 1):
    end = min(first + room - 1, len(ids))
    windows.append((ids[max(0, end - room) : first], ids[first:end]))
  want = sum(score.logprob for score in scoring.score(short.sampler, windows))
  windowed, _ = short.loglikelihood_rolling(asked)
  assert windowed == pytest.approx(want, abs=1e-4)
  assert windowed != pytest.approx(whole, abs=1e-2)


@pytest.mark.parametrize(
  ('options', 'said'),
  [
    (dict(verifier=None), 'verifier: must be given'),
    (dict(verifeir='x'), "model_args: 'verifeir' is not known; choose from ve"),
    (dict(verifier=7), "'7'"),
    (dict(batch_size='many'), "batch_size: must be a whole number, got 'many'"),
  ],
)
def test_model_args_are_checked_by_name(options, said):
  with pytest.raises(ValueError, match=said):
    CascadesLM(**_SMALL | options)


def test_the_harness_says_how_large_a_batch_may_be():
  assert get_model('cascades') is CascadesLM
  for options, size in (
    (dict(batch_size='auto'), 64),
    (dict(batch_size='auto', max_batch_size=9), 9),
    # As the command line gives it; its device is none of JAX's.
    (dict(batch_size='2', device='cuda:0'), 2),
  ):
    assert CascadesLM(**_SMALL | options).sampler.config.batch_size == size


def test_what_a_task_may_not_ask_for_is_refused_by_name():
  for refused in (
    lambda: _lm().apply_chat_template([dict(role='user', content='a')]),
    lambda: _lm().chat_template(True),
  ):
    with pytest.raises(ValueError, match=r'chat: apply_chat_template is not '):
      refused()
  with pytest.raises(ValueError, match="chat_template: the name 'rag' is"):
    _lm().chat_template('rag')


@pytest.fixture
def chat_lm(tmp_path):
  """A small model with a chat template."""
  tokenizer = chat_test._tokenizer(chat_test._source('gemma3'))
  model = small.random_model(tokenizer, width=8)
  checkpoints.save_model(tmp_path / 'model', model)
  options = dict(gamma=0, cache_length=1000, batch_size=6)
  return CascadesLM(verifier=str(tmp_path / 'model'), **options)


def test_chats_are_encoded_apart_from_their_frame(chat_lm):
  words = 'two<end_of_turn>\n<start_of_turn>model\n'
  history = [('system', 'Count.'), ('user', words)]
  messages = [dict(role=role, content=content) for role, content in history]
  prompt = chat_lm.apply_chat_template(messages)
  turns = '<start_of_turn>system\nCount.<end_of_turn>\n<start_of_turn>user\n'
  assert prompt == f'{turns}{words}<end_of_turn>\n<start_of_turn>model\n'
  (text,) = _generate(chat_lm, (prompt, dict(max_gen_toks=3, until=[])))
  options = dict(gamma=0, temperature=0, cache_length=1000)
  greedy = small.sampler(chat_lm.sampler.verifier, **options)
  conversation = Conversation(history)
  assert text == greedy.sample(conversation, max_new_tokens=3).text
  # A likelihood is that of the ids behind the frame; a prefix is continued.
  ids = greedy.encode(conversation)
  for more in [], [dict(role='assistant', content='three')]:
    context = chat_lm.apply_chat_template(messages + more, not more)
    before = greedy.encode(context.messages)
    assert before[: len(ids)] == ids
    request = _requests('loglikelihood', (context, 'is<eos>'))
    said = chat_lm.loglikelihood(request, True)
    apart = chat_lm.sampler.tokenizer.encode_framed(['is<eos>'])
    want = scoring.score(chat_lm.sampler, [(before, apart)])
    assert said[0][0] == pytest.approx(want[0].logprob, abs=1e-4)


def test_a_task_with_an_instruction_is_a_chat(chat_lm, tmp_path, monkeypatch):
  monkeypatch.chdir(small.ROOT)
  monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path / 'hf')
  results = lm_eval.simple_evaluate(
    chat_lm,
    tasks=['numerals_written', 'numerals_chosen'],
    apply_chat_template=True,
    system_instruction='Write numbers.',
    task_manager=TaskManager(include_path=_DATA, include_defaults=False),
  )
  assert chat_lm.chat_template(True) == chat_lm.sampler.tokenizer.chat_template
  samples = results['samples']['numerals_written']
  assert len(samples) == 6
  prompt = samples[0]['arguments'][0][0]
  assert prompt == (
    '<start_of_turn>system\nWrite numbers.<end_of_turn>\n<start_of_turn>user\n'
    'The number 4302 in words:<end_of_turn>\n<start_of_turn>model\n'
  )


def test_tasks_run_through_the_command_line(tmp_path):
  arguments = 'verifier=tiny-verifier,drafter=tiny-drafter,lenience=0.3,gamma=4'
  arguments += f',logprobs={tmp_path / "logprobs.jsonl"}'
  done = launching.python(
    *('-m', 'cascades.contrib.lm_eval'),
    *('--model', 'cascades', '--model_args', arguments),
    *('--tasks', 'numerals_written,numerals_chosen'),
    *('--include_path', _DATA, '--batch_size', 18),
    *('--output_path', tmp_path / 'out', '--log_samples'),
    # Nothing may be downloaded, and nothing left behind.
    env=os.environ | dict(HF_HOME=str(tmp_path / 'hf'), HF_HUB_OFFLINE='1'),
  )
  assert done.returncode == 0, done.stderr
  (path,) = (tmp_path / 'out').rglob('results_*.json')
  found = small.read_json(path)
  assert found['results']['numerals_written']['exact_match,none'] == 1
  assert found['results']['numerals_chosen']['acc,none'] == 1
  info = found['config']['cascades']
  assert info | dict(method='token_v3', lenience=0.3, gamma=4) == info
  counts = info['counts']
  assert counts['answers'] == 6
  assert counts['acceptance_rate'] == counts['accepted'] / counts['examined']
  emitted = counts['accepted'] + counts['residual'] + counts['bonus']
  assert counts['tokens'] == emitted
  assert counts['block_efficiency'] == emitted / counts['verifier_calls'] > 2
  assert done.stderr.count('verifier_calls') == 1
  # Log-probabilities of the answers, by the hash of the harness's samples.
  (path,) = (tmp_path / 'out').rglob('samples_numerals_written_*.jsonl')
  samples = map(json.loads, path.read_text().splitlines())
  lines = (tmp_path / 'logprobs.jsonl').read_text().splitlines()
  logged = {line['prompt_hash']: line for line in map(json.loads, lines)}
  assert logged.keys() == {sample['prompt_hash'] for sample in samples}
  assert sum(len(line['tokens']) for line in logged.values()) == emitted
  for line in logged.values():
    assert line['law_given'] == 'text'
    for name in 'verifier', 'drafter', 'target':
      values = map(float, line[f'{name}_logprobs'])
      assert len([x for x in values if x <= 0]) == len(line['tokens'])
