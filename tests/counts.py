"""Identities between the counts of a record, for all methods."""

from experiments.records import Record, Trace


def check(record: Record, trace: Trace | None = None) -> None:
  """Checks a record's counts; a ValueError names the first broken rule."""
  r, emitted = record, record.emitted
  rules = {
    'drafted >= examined >= accepted >= 0': (
      r.drafted >= r.examined >= r.accepted >= 0
    ),
    '0 <= deferred <= examined': 0 <= (r.deferred or 0) <= r.examined,
    'verifier_tokens >= verifier_calls >= 0': (
      r.verifier_tokens >= r.verifier_calls >= 0
    ),
  }
  # At gamma 0 there are no blocks, and one model writes every token.
  if r.gamma > 0:
    rules['accepted + residual + bonus == emitted'] = (
      r.accepted + r.residual + r.bonus == emitted
    )
    rules['emitted <= (gamma + 1) * verifier_calls'] = (
      emitted <= (r.gamma + 1) * r.verifier_calls
    )
  else:
    rules['verifier_tokens == verifier_calls at gamma 0'] = (
      r.verifier_tokens == r.verifier_calls
    )
  if trace is not None:
    parts = trace.tokens, trace.token_strings, trace.sources, trace.logprobs
    is_counted = (trace.deferred is None) == (r.deferred is None)
    is_sum = r.deferrals is None or r.deferrals == sum(trace.deferred)
    rules |= {
      'a trace is of its record': trace.id == r.id,
      'a token has a piece, a source and a log-probability': (
        {len(part) for part in parts} == {emitted}
      ),
      'the pieces are the text': ''.join(trace.token_strings) == r.text,
      'deferrals are told where they are counted': is_counted or r.failure,
      'deferrals are those of the trace': is_sum,
    }
  for rule, holds in rules.items():
    if not holds:
      raise ValueError(f'record: {r.point} id {r.id!r} breaks {rule}.')
