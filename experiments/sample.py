r"""Answers one prompt, and shows the source of every token.

Command: python -m experiments.sample --method=token_v3 --lenience=0.3 \
  --prompt='The number 4302 in words:'
Shows: the text, its tokens coloured by source, and the counts; with --explain
  also the log-probability of each token under verifier, drafter and target, and
  why drafts were accepted or rejected.
"""

import math
import os
import sys
from collections.abc import Iterator
from typing import Any

from absl import app, flags

import cascades
from cascades import drafters, files, presets
from cascades.arguments import options_of
from cascades.config import DecodingConfig
from cascades.models.chat import Conversation
from cascades.verification_config import DRAFT, RESIDUAL, SOURCES
from experiments import cli
from experiments.sweeps import fields

_PROMPT = flags.DEFINE_string('prompt', None, 'Text to continue.')
_DECLARED = options_of(fields.SweepConfig)
_MODELS = 'verifier drafter chat seed dtype'.split()
cli.define_options(options_of(DecodingConfig))
cli.define_options({name: _DECLARED[name] for name in _MODELS})
_SYSTEM = flags.DEFINE_string(
  'system', None, 'System message before the prompt; implies --chat.'
)
_DECISION = flags.DEFINE_string(
  'decision',
  None,
  "Path of a sweep's decision.json, or of its workdir; sets the models, the"
  ' options, the maximum number of new tokens and the stop texts.',
)
_MAX_NEW_TOKENS = flags.DEFINE_integer(
  'max_new_tokens', 128, 'Maximum number of new tokens.'
)
_STOP_STRING = flags.DEFINE_multi_string(
  'stop_string', [], 'Text that ends the answer; can be given several times.'
)
_EXPLAIN = flags.DEFINE_bool(
  'explain',
  False,
  'Prints a line for each token, with its log-probabilities, and one for each'
  ' draft that was examined, with the numbers that decided about it.',
)

# By index into `records.SOURCES`: name, ANSI colour, and the marks that replace
# the colour without a terminal.
_STYLES = (
  ('prompt', '2', ('', '')),
  ('accepted draft', '32', ('', '')),
  ('residual of the target', '1;31', ('[', ']')),
  ('bonus', '1;34', ('{', '}')),
)


def paint(token_strings: list[str], sources: list[int], colour: bool) -> str:
  """Returns the text with its tokens coloured, or marked, by source."""
  out = []
  for text, source in zip(token_strings, sources, strict=True):
    _, code, marks = _STYLES[source]
    left, right = (f'\x1b[{code}m', '\x1b[0m') if colour else marks
    if text:
      out.append(f'{left}{files.printable(text)}{right}')
  return ''.join(out)


def _decoder(sampler: Any) -> Any:
  """Makes the sampler of the flags, or of --decision."""
  of_config = options_of(DecodingConfig)
  of_drafter = drafters.declared_options()
  values = {x: flags.FLAGS[x] for x in (*of_config, *of_drafter, 'dtype')}
  if not _DECISION.value:
    config = presets.configure(
      **{name: values[name].value for name in of_config}
    )
    # Refuses a method that has no strict lenience before a model is loaded.
    _ = config.effective_lenience
    options = {name: values[name].value for name in of_drafter}
    drafter = drafters.parse(flags.FLAGS.drafter, **options)
    models = flags.FLAGS.verifier, drafter
    return sampler(*models, config=config, dtype=flags.FLAGS.dtype)
  for name, flag in values.items():
    if flag.present:
      raise ValueError(
        f'{name}: cannot be combined with the decision {_DECISION.value},'
        f' which sets {name}; leave out --{name} or --decision.'
      )
  flag_of = (flags.FLAGS[name] for name in ('verifier', 'drafter'))
  models = (flag.value if flag.present else None for flag in flag_of)
  return sampler.from_decision(_DECISION.value, *models)


def _sample_options() -> dict[str, Any]:
  """Returns the options of an answer: those of the flags, then a decision's."""
  options = {
    'max_new_tokens': _MAX_NEW_TOKENS,
    'stop_strings': _STOP_STRING,
    'apply_chat_template': flags.FLAGS['chat'],
  }
  decided = {}
  if _DECISION.value:
    from cascades import decisions

    decided = decisions.Decision.load(_DECISION.value).sample_options
  return {
    name: decided[name] if name in decided and not flag.present else flag.value
    for name, flag in options.items()
  }


def _quote(decoder: Any, token: int) -> str:
  """Returns a token's text in quotation marks, or its name without a text."""
  (text,) = decoder.tokenizer.token_strings([token])
  if text in ('', '\ufffd'):
    text = decoder.tokenizer.piece(token)
  return files.printable(repr(text))


def decisions(decoder: Any, explanations: list[Any]) -> Iterator[str]:
  """Yields a line for each draft, with its block and position."""
  block, position = 1, 0
  for x in explanations:
    position += 1
    if x.draft is not None:
      numbers = dict(q=x.q, p=x.p, pi=x.pi, a=x.acceptance, u=x.uniform)
      values = [f'{k} {v:.3g}' for k, v in numbers.items() if v is not None]
      if x.deferred is not None:
        values.append('deferred' if x.deferred else 'not deferred')
      decision = 'rejected' if x.source == RESIDUAL else 'accepted'
      line = f'{block}/{position} {_quote(decoder, x.draft)} {decision}: '
      line += ', '.join(values)
      if x.source == RESIDUAL:
        line += f'; {_quote(decoder, x.token)} from the residual'
      residual = [f'{_quote(decoder, i)} {p:.3g}' for i, p in x.residual]
      yield line + (': ' + ', '.join(residual) if residual else '')
    if x.source != DRAFT:
      block, position = block + 1, 0


def token_table(decoder: Any, answer: Any) -> Iterator[str]:
  """Yields a line for each token: its source, log p, log q and log pi."""
  count, law = len(answer.logprobs), answer.law_given
  columns = 'verifier', 'drafter', 'target' + ' (path)' * (law == 'path')
  yield f'{"token":<20}{"source":<10}' + ''.join(f'{x:>15}' for x in columns)
  for token, source, *logprobs in zip(
    answer.tokens[-count:],
    answer.sources[-count:],
    answer.verifier_logprobs,
    answer.drafter_logprobs,
    answer.target_logprobs,
    strict=True,
  ):
    cells = ('-' if x is None else f'{x + 0.0:.3g}' for x in logprobs)
    text = f'{_quote(decoder, token):<20}{SOURCES[source]:<10}'
    yield text + ''.join(f'{x:>15}' for x in cells)


def main() -> None:
  """Runs the command."""
  if not _PROMPT.value:
    raise app.UsageError(
      "prompt: no text is given; give one, such as --prompt='Hello'."
    )
  from cascades.sampler import sampler, scoring
  from experiments import records

  decoder = _decoder(sampler.Sampler)
  if _EXPLAIN.value:
    scoring.explained_target(decoder)
  prompt, options = _PROMPT.value, _sample_options()
  if _SYSTEM.value is not None:
    prompt = Conversation([('system', _SYSTEM.value), ('user', prompt)])
  cli.say('compiling, then decoding')
  request = dict(echo=True, return_logprobs=_EXPLAIN.value)
  answer = decoder.sample(prompt, seed=flags.FLAGS.seed, **request, **options)
  colour = sys.stdout.isatty() and 'NO_COLOR' not in os.environ
  print(paint(answer.token_strings, answer.sources, colour))
  legend = (paint([x], [i], colour) for i, (x, *_) in enumerate(_STYLES))
  print(f'\n{"  ".join(legend)}')
  has_rule = answer.deferred is not None
  counts = ', '.join(
    f'{name} {count if has_rule or name != "deferred" else "-"}'
    for name, count in answer.counts.items()
  )
  print(f'{counts}.')
  config = decoder.config
  named = {name: getattr(config, name) for name in records.OPTIONS}
  variant = records.variant(config.method.name, **named)
  rates = [
    text.format(rate)
    for text, rate in (
      ('acceptance rate {:.3f}', answer.acceptance_rate),
      ('{:.2f} tokens per verifier call', answer.block_efficiency),
    )
    if not math.isnan(rate)
  ]
  print(
    f'{variant}, lenience {config.effective_lenience:g}, gamma {config.gamma},'
    f' temperature {config.temperature:g},'
    f' {"lossless" if config.is_lossless else "lossy"}'
    f'{": " * bool(rates)}{", ".join(rates)}.'
  )
  if _EXPLAIN.value:
    explained = cascades.explain(
      decoder,
      prompt,
      answer,
      apply_chat_template=options['apply_chat_template'],
    )
    print('', *token_table(decoder, answer), '', sep='\n')
    print('\n'.join(decisions(decoder, explained)) or 'No draft was examined.')


if __name__ == '__main__':
  cli.run(main, drafters.declared_options)
