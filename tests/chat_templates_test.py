"""Chat templates that come with models, and what hostile ones may do."""

import functools
import json
import pathlib
import re

import jax
import jinja2.sandbox
import pytest
import small
from fixtures import gguf_writer

from cascades.models import (
  chat_templates,
  checkpoints,
  gguf_files,
  language,
  tokenizer_files,
  turns,
)
from cascades.models.conversations import Conversation

_FOLDER = pathlib.Path(__file__).parent / 'fixtures/chat'
_NAMES = 'folded', 'gemma3', 'gemma4'
_CONVERSATIONS = small.read_json(_FOLDER / 'conversations.json')


@functools.cache
def _tokenizer(source=None):
  """Returns the tokenizer of the fixtures with a template."""
  tokenizer = tokenizer_files.read(_FOLDER / 'tokenizer.json')
  return tokenizer.with_chat_template(source)


def _source(name):
  return (_FOLDER / f'{name}.jinja').read_text()


def _template(source):
  return turns.require_template(_tokenizer(source))


def _control_tokens(ids):
  controls = set(_tokenizer().control_tokens().values())
  return [i for i in ids if i in controls]


def _encode(source, conversation, *args):
  """Returns the ids of a conversation, or why it is refused."""
  tokenizer = _tokenizer(source)
  try:
    return _template(source).encode(
      tokenizer, Conversation(conversation), *args
    )
  except ValueError as error:
    return str(error)


@pytest.mark.parametrize('name', _NAMES)
def test_templates_give_the_ids_of_transformers(name):
  expected = small.read_json(_FOLDER / 'expected.json')[f'{name}.jinja']
  assert len(expected) == len(_CONVERSATIONS)
  spelled = 0
  for conversation, want in zip(_CONVERSATIONS, expected, strict=True):
    if isinstance(want, str):
      refusal = f"messages: the model's chat template refuses them ({want})"
      assert _encode(_source(name), conversation) == f'{refusal}; change them.'
      continue
    # With control tokens in messages, as transformers reads them.
    assert _encode(_source(name), conversation, None, True) == want
    ids = _encode(_source(name), conversation)
    letters = [[role, 'a'] for role, _ in conversation]
    assert _control_tokens(ids) == _control_tokens(
      _encode(_source(name), letters)
    )
    spelled += ids != want
  # Of messages without control tokens, the ids are those of transformers.
  assert spelled == {'folded': 3, 'gemma3': 3, 'gemma4': 3}[name]


def test_a_template_of_dialogs_frame_is_the_built_in_one():
  built_in = turns.require_template(_tokenizer())
  template = _template(_source('gemma4'))
  messages = [('system', 'Be short.'), ('user', 'hi<turn|>')]
  messages += [('assistant', 'It is 4.'), ('user', '<b>What?')]
  for last in 2, 3, 4:
    for last_token in None, 25, template.end_token:
      conversation = Conversation(messages[:last])
      ids = template.encode(_tokenizer(), conversation, last_token)
      assert ids == built_in.encode(_tokenizer(), conversation, last_token)


# Texts c that templates make of a message m, and what they write of them.
_TEXTS = {
  'message': '{% set c = m.content %}',
  'macro': '{% set c = f(m.content) %}',
  'block': '{% set c %}{{ m.content }}{% endset %}',
  'joined': "{% set c = '<eos>' ~ m.content %}",
  'added': "{% set c = m.content + '<end_of_turn>' %}",
  'formatted': "{% set c = 'a%s' % m.content %}",
}
_CUTS = (
  "{% if '</x>' in c %}{% set c = c.split('</x>')[-1] %}{% endif %}{{ c }}",
  "{{ c.strip('<x>') }}{{ c.rsplit('>', 1)[0] }} {{ c.partition('<')[2] }}",
  "{{ c.removeprefix('<') }} {{ c.removesuffix('>') }} {{ c.split() | join }}",
  '{{ c | tojson }}{{ [m, {c: 1}] | tojson(indent=2) }}{{ c | upper }}',
  "{{ c | tojson(ensure_ascii=true) }}{{ c | replace('a', '<eos>') }}",
  "{{ c | replace('<', 'x') }}{{ c.replace('a', '<eos>') }}{{ c | lower }}",
  "{{ c[1:] }} {{ c | first }}{% for x in c %}{{ x == '<' }}{% endfor %}",
  "{{ c == '<x>' }}{{ c < 'b' }}{{ c is lower }}{{ [c, 'b'] | max }}",
  "{{ c | length }}{{ c.find('<') }}{{ {'<x>': 1}[c] }}{{ 'a<x>'.split(c) }}",
  "{{ c.join(['<', c]) }}{{ strftime_now('%f') | length }}{{ 5 | string }}",
  '{% generation %}{% set z = c %}{{ c }}{% endgeneration %}{{ z }}',
  "{{ [{'x': {'y': c}}, {'x': {'y': '-'}}] | join(', ', 'x.y') }}",
  "{{ c.title() }}{{ c | capitalize }}{{ c in 'a<eos>' }}{{ c | int }}",
  "{{ c | title }}{{ (c | safe) + '<' }}{{ [5, c] | string }}{{ [c] }}",
)
_MESSAGES = (
  *('hi', 'x', ' a ', '<x>b</x>a', '<eos>', 'a<end_of_turn>\n<b>', '12'),
  *('"\\\'{}%s', '\U000f0000 \u2581\x7f\x1c', 'MASK \U0001f415', '\xdf K'),
)


def _plain(source, content):
  """Returns the text that transformers makes of a message."""
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True
  )
  dumps = functools.partial(json.dumps, ensure_ascii=False)
  environment.filters['tojson'] = dumps
  environment.globals['strftime_now'] = lambda form: '123456'
  # Transformers writes such a block in a scope of its own, as a call does.
  source = source.replace('{% generation %}', '{% call g() %}')
  source = source.replace('{% endgeneration %}', '{% endcall %}')
  source = '{% macro g() %}{{ caller() }}{% endmacro %}' + source
  m = dict(role='user', content=content)
  return environment.from_string(source).render(m=m)


@pytest.mark.parametrize('kind', _TEXTS)
@pytest.mark.parametrize('cut', _CUTS)
def test_the_text_is_that_of_plain_jinja_or_refused(kind, cut):
  source = '{% macro f(x) %}{{ x }}{% endmacro %}' + _TEXTS[kind]
  source += f'<end_of_turn>{cut}<end_of_turn>'
  template = _template('{% set m = messages[0] %}' + source)
  for content in _MESSAGES:
    try:
      parts = template.split(Conversation([('user', content)]))
    except ValueError as refusal:
      # Words and control tokens have changed each other.
      assert 'computes with these' in str(refusal)
      assert '<' in content or '<eos>' in cut
      continue
    pieces = (x if isinstance(x, str) else _tokenizer().piece(x) for x in parts)
    want = _plain(source, content)
    assert ''.join(pieces) == want
    # Without a control token in the message, ids are those of plain Jinja.
    if not {'<eos>', '<end_of_turn>'} & {*re.findall('<.*?>', content)}:
      assert _control_tokens(parts) == _control_tokens(template._split(want))


@pytest.mark.parametrize('name', _NAMES)
def test_a_later_turn_closes_the_answer(name):
  template, start = _template(_source(name)), '<start_of_turn>'
  end = '<end_of_turn>'
  if name == 'gemma4':
    start, end = '<|turn>', '<turn|>'
  assert _tokenizer().piece(template.end_token) == end
  turn = f'{start}user\nhi{end}\n{start}model\n'
  assert template.format_turn('hi') == turn
  assert template.format_turn('hi', template.end_token) == f'\n{turn}'
  assert template.format_turn('hi', 25) == f'{end}\n{turn}'
  tokenizer = _tokenizer(_source(name))
  want = tokenizer.encode(f'{end}\n{turn}')
  assert template.encode(tokenizer, 'hi', 25) == want


def test_only_the_end_of_the_answer_is_left_out_of_a_later_turn():
  source = """{% for m in messages %}{{ m.role ~ ' ' ~ m.content }}
  {%- if m.role == 'user' or loop.last %}<end_of_turn>{% endif %}{% endfor %}"""
  end = _tokenizer().token_id('<end_of_turn>')
  assert _template(source).format_turn('hi', end) == 'user hi<end_of_turn>'


def test_a_template_without_answers_continues_none():
  template = _template("{{ messages[-1]['content'] }}")
  assert template.end_token is None
  assert template.format_turn('hi') == 'hi'
  with pytest.raises(ValueError, match=r'^chat_template: must render each'):
    template.format_turn('hi', 25)


# Templates, and the reasons that they are refused for.
_HOSTILE = {
  '{{ messages.__class__() }}': "'__class__' of 'list' object is unsafe",
  "{{ ''['__class__'].__mro__ }}": "'__class__' of 'str' object is unsafe",
  "{{ ('' | attr('__class__')).x }}": "'__class__' of 'str' object is unsafe",
  '{{ raise_exception.__globals__.x }}': "'__globals__' of 'function' object",
  "{{ '{0.__class__.x}'.format(1) }}": "'__class__' of 'int' object is unsafe",
  "{{ messages[0].update(role='x') }}": "'update' of 'dict' object is unsafe",
  '{{ messages.append(1) }}': "'append' of 'list' object is unsafe",
  "{% include '/etc/passwd' %}": 'no loader for this environment',
  '{% for i in range(10**9) %}{% endfor %}': 'Range too big',
  '{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}': 'recursion',
  "{{ 'x' * 2**21 }}": 'it makes more than 1048576 characters',
  "{{ 'a'.ljust(2**21) }}": 'it makes more than 1048576 characters',
  '{{ messages[0].missing.attribute }}': "has no attribute 'missing'",
}


@pytest.mark.parametrize('source', _HOSTILE)
def test_hostile_templates_are_refused(source):
  with pytest.raises(ValueError) as error:  # noqa: PT011
    chat_templates.ChatTemplate(_tokenizer(), source).format_turn('hi')
  first, *rest = str(error.value).splitlines()
  assert first.startswith('chat_template: cannot be rendered (')
  assert _HOSTILE[source] in first
  assert first.endswith('); give another template.')
  assert not rest


@pytest.mark.parametrize(
  ('source', 'match'),
  [
    ('{% if', r"is not a valid .*\(unexpected 'end of template'\); give"),
    ('{{ ' + '(' * 9999 + ')' * 9999 + ' }}', 'is not a valid .*recursion'),
    ("{{ 'a' | nothing }}", "is not a valid .*No filter named 'nothing'"),
    ('x' * (chat_templates.MAX_CHARS + 1), 'has more than 1048576 characters'),
  ],
)
def test_what_is_no_template_is_refused(source, match):
  with pytest.raises(ValueError, match=f'^chat_template: {match}'):
    turns.find_template(_tokenizer(source))


def test_reasons_of_a_template_are_one_printable_line():
  source = "{{ raise_exception('a\\x1b[31m\\nb' + 'x' * 9999) }}"
  reason = _encode(source, [['user', 'hi']])
  assert len(reason) < 500
  assert reason.isprintable()


def test_a_long_conversation_is_rendered():
  words = 'hello<end_of_turn> ' * 999
  messages = [['user', words], ['assistant', words]] * 20 + [['user', words]]
  for name in _NAMES:
    ids = _encode(_source(name), messages)
    ends = [_template(_source(name)).end_token]
    assert sum(i in ends for i in ids) == 41


# --- Files ---


def test_a_folder_has_its_template_in_one_of_three_files(tmp_path):
  assert chat_templates.read(tmp_path) is None
  named = [dict(name=x, template=f'the {x}') for x in ('rag', 'default')]
  for name, content, want in [
    ('chat_template.json', dict(chat_template='json'), 'json'),
    ('tokenizer_config.json', dict(bos_token='<bos>'), 'json'),
    ('tokenizer_config.json', dict(chat_template='config'), 'config'),
    ('tokenizer_config.json', dict(chat_template=named), 'the default'),
  ]:
    (tmp_path / name).write_text(json.dumps(content))
    assert chat_templates.read(tmp_path) == want
  (tmp_path / 'chat_template.jinja').write_text('jinja')
  assert chat_templates.read(tmp_path) == 'jinja'
  # A model that is saved there has none of them.
  checkpoints.save_model(tmp_path, checkpoints.load_model('tiny-drafter'))
  assert chat_templates.read(tmp_path) is None


@pytest.mark.parametrize(
  ('field', 'match'),
  [
    (3, 'chat_template must be a valid string .*, got 3'),
    ([dict(name='rag')], r'chat_template.0.template is missing'),
    ([dict(name='rag', template='x')], r"templates \['rag'\], none named def"),
    (None, 'is not UTF-8 text'),
  ],
)
def test_damaged_files_of_templates_are_refused(tmp_path, field, match):
  content = json.dumps(dict(chat_template=field)).encode()
  name = 'tokenizer_config.json' if field else 'chat_template.jinja'
  (tmp_path / name).write_bytes(content if field else b'\xff')
  with pytest.raises(ValueError, match=rf'^chat_template: .*{name}.*{match}'):
    chat_templates.read(tmp_path)


@functools.cache
def _checkpoint():
  """Returns a small model with a template, and with nothing to say."""
  tokenizer = _tokenizer(_source('folded'))
  model = language.from_config(small.config_of(tokenizer.vocab_size, width=8))
  params = model.init_params(jax.random.key(0))
  return checkpoints.Checkpoint(model, params, tokenizer)


@pytest.mark.parametrize('kind', ['folder', 'gguf'])
def test_a_model_is_asked_by_its_own_template(tmp_path, kind):
  path = tmp_path / ('model.gguf' if kind == 'gguf' else 'model')
  save = gguf_writer.save_gguf if kind == 'gguf' else checkpoints.save_model
  save(path, _checkpoint())
  one = small.sampler(str(path), gamma=0, cache_length=200)
  assert one.tokenizer.chat_template == _source('folded')
  messages = Conversation([('system', ' Be short. '), ('user', ' hi<eos>')])
  end = one.tokenizer.token_id('<end_of_turn>')
  others = [i for i in range(one.tokenizer.vocab_size) if i != end]
  options = dict(max_new_tokens=3, forbidden_tokens=others, echo=True)
  answer = one.sample(messages, **options)
  # Trimmed, and without a turn of the system.
  turn = 'user\nBe short.\n\nhi<eos><end_of_turn>\n<start_of_turn>model\n'
  assert answer.text == f'<start_of_turn>{turn}'
  assert answer.tokens == [*one.encode(messages), end]
  assert one.tokenizer.token_id('<eos>') not in answer.tokens
  raw = one.sample(messages, allow_control_tokens=True, **options)
  assert raw.tokens.count(one.tokenizer.token_id('<eos>')) == 1
  assert len(raw.tokens) < len(answer.tokens)
  # A later turn of a conversation; the answer has ended its turn.
  options = dict(max_new_tokens=3, forbidden_tokens=others, return_state=True)
  state = one.sample('a', apply_chat_template=True, **options).state
  options |= dict(last_state=state, apply_chat_template=True)
  row = one.sample('b', **options).state.row
  read = row.tokens[0, : int(row.prompt_length[0])].tolist()
  ends = [('user', 'a'), ('assistant', ''), ('user', 'b')]
  ends = one.encode(Conversation(ends))
  assert read.count(end) == ends.count(end) == 3


def test_a_template_of_a_gguf_that_is_no_text_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(_checkpoint().tokenizer, 'chat_template', 'x')
  file = tmp_path / 'model.gguf'
  gguf_writer.save_gguf(file, _checkpoint())
  header = gguf_files.read_header(file)
  header.fields['tokenizer.chat_template'] = 3
  with pytest.raises(ValueError, match=r'chat_template must be .* got 3'):
    gguf_files.read_tokenizer(header)
