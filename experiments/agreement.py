"""Measures greedy agreement between drafter and verifier, per token.

Command: python -m experiments.agreement --prompt='The number 4302 in words:'
Shows: the drafter's continuation, coloured where it equals the verifier's most
probable token; both tokens at each difference; and the number of verifier calls
of greedy speculative decoding.
"""

from absl import app, flags

from cascades import files
from cascades.config import DecodingConfig
from experiments import cli

_PROMPT = flags.DEFINE_string('prompt', None, 'Text to continue.')
_DRAFTER = flags.DEFINE_string(
  'drafter', 'tiny-drafter', 'Drafter; see --help of experiments.sample.'
)
_VERIFIER = flags.DEFINE_string(
  'verifier', 'tiny-verifier', 'Verifier; see --help of experiments.sample.'
)
_GAMMA = flags.DEFINE_integer('gamma', 4, 'Tokens drafted per block.')
_MAX_NEW_TOKENS = flags.DEFINE_integer(
  'max_new_tokens', 64, 'Maximum number of new tokens.'
)
_CHAT = cli.define_chat()
cli.define_import()
cli.define_colour()
cli.define_dtype()


def _paint(result, colour: bool) -> str:
  """Returns the continuation with agreeing and differing tokens marked."""
  out = []
  for i, (token, piece) in enumerate(
    zip(result.tokens, result.token_strings, strict=True)
  ):
    piece = files.printable(piece) or '<end>'
    if i < result.matched_length:
      out.append(f'\x1b[32m{piece}\x1b[0m' if colour else piece)
    elif token.is_match:
      out.append(f'\x1b[2m{piece}\x1b[0m' if colour else piece)
    else:
      out.append(f'\x1b[1;31m{piece}\x1b[0m' if colour else f'[{piece}]')
  return ''.join(out)


def main() -> None:
  """Runs the command."""
  if not _PROMPT.value:
    raise app.UsageError(
      "prompt: no text is given; give one, such as --prompt='Hello'."
    )
  from cascades import drafters, load_model
  from cascades.sampler import agreement, sampler

  dtype, chat = flags.FLAGS.dtype, _CHAT.value
  verifier = load_model(_VERIFIER.value, dtype)
  drafter = drafters.load(_DRAFTER.value, dtype)
  length = _MAX_NEW_TOKENS.value
  cli.say('compiling, then comparing the two models')
  result = agreement.agreement(
    (verifier, drafter), _PROMPT.value, length, apply_chat_template=chat
  )
  if not result.tokens:
    print('The drafter proposes no token after this prompt.')
    return
  colour = cli.colours()
  print(f'{_PROMPT.value}{_paint(result, colour)}\n')

  def text(token: int) -> str:
    if token in verifier.tokenizer.stops:
      return 'end'
    return repr(verifier.tokenizer.token_strings([token])[0])

  print(f'{"":>4}  {"drafter":<16}{"q":>6}{"p":>7}   {"verifier":<16}{"p":>6}')
  for i, token in enumerate(result.tokens):
    line = (
      f'{i:>4}  {text(token.drafter_token):<16}{token.q_drafter_token:>6.3f}'
      f'{token.p_drafter_token:>7.3f}   '
    )
    if not token.is_match:
      line += f'{text(token.verifier_token):<16}{token.p_verifier_token:>6.3f}'
    print(line.rstrip())
  total = len(result.tokens)
  summary = f'\nThe first {result.matched_length} of {total} tokens agree.'
  if result.first_mismatch is not None:
    token = result.first_mismatch
    summary += (
      f' Then the drafter prefers {text(token.drafter_token)}'
      f' ({token.q_drafter_token:.3f}), the verifier'
      f' {text(token.verifier_token)} ({token.p_verifier_token:.3f}).'
    )
  print(summary)
  cli.say('compiling, then decoding')
  greedy = sampler.Sampler(
    verifier,
    drafter,
    config=DecodingConfig(
      method='speed', lenience=0.0, gamma=_GAMMA.value, temperature=0.0
    ),
  ).sample(_PROMPT.value, max_new_tokens=length, apply_chat_template=chat)
  print(
    f'Greedy speculative decoding with gamma {_GAMMA.value}:'
    f' {greedy.counts["verifier_calls"]} verifier calls for'
    f' {len(greedy.logprobs)} tokens.'
  )


if __name__ == '__main__':
  cli.run(main)
