"""Identities between the counts of a record, for all methods."""

from experiments.records import Record, Trace


def check(record: Record, trace: Trace | None = None) -> None:
  """Checks a record's counts, and those of its trace."""
  r, emitted = record, record.emitted
  assert r.drafted >= r.examined >= r.accepted >= 0, r
  assert 0 <= (r.deferred or 0) <= r.examined, r
  assert r.verifier_tokens >= r.verifier_calls >= 0, r
  if r.gamma > 0:
    assert r.accepted + r.residual + r.bonus == emitted, r
    assert emitted <= (r.gamma + 1) * r.verifier_calls, r
  else:
    # There are no blocks, and one model writes every token.
    assert r.verifier_tokens == r.verifier_calls, r
  if trace is not None:
    assert trace.id == r.id
    parts = trace.tokens, trace.token_strings, trace.sources, trace.logprobs
    assert {*map(len, parts)} == {emitted}, r
    assert ''.join(trace.token_strings) == r.text, r
    # Deferrals are told where they are counted.
    assert (trace.deferred is None) == (r.deferred is None) or r.failure, r
    assert r.deferrals is None or r.deferrals == sum(trace.deferred), r
