"""Unit costs: measured seconds of one call of each model.

They are the units of the modelled latency. A workdir keeps its measurements in
`costs.json`.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pydantic

from cascades import files
from cascades.files import Positive, Schema

# JSON has only strings for keys.
_Number = Annotated[files.Count, pydantic.BeforeValidator(int)]


class Costs(Schema):
  """Measured unit costs of the decoding loop, in seconds for a batch.

  A workdir has those of one row.

  Attributes:
    verifier_token_s: Time of a token that the verifier decodes alone.
    drafter_token_s: Time of a token that the drafter decodes alone; for a
      drafter that is no model, its share of a proposal.
    verify_s: Time of a strict block without its drafter's calls, by the number
      of drafted tokens: gamma, or the tokens of all drafts.
    drafts_s: Time of a token of each of several drafts, by drafts per block.
  """

  model_config = pydantic.ConfigDict(extra='forbid')
  verifier_token_s: Positive
  drafter_token_s: Positive
  verify_s: dict[_Number, Positive]
  drafts_s: dict[_Number, Positive] = pydantic.Field(default_factory=dict)

  def drafter(self, drafts: int) -> float:
    """Returns the seconds of a drafter call on a token of each draft."""
    if drafts == 1:
      return self.drafter_token_s
    if drafts not in self.drafts_s:
      raise ValueError(f'costs: drafts_s lacks {drafts} drafts; measure them.')
    return self.drafts_s[drafts]

  def verify(self, gamma: int) -> float:
    """Returns the seconds of a verifier call on gamma drafted tokens."""
    if gamma == 0:
      return self.verifier_token_s
    if gamma not in self.verify_s:
      raise ValueError(f'costs: verify_s lacks gamma {gamma}; measure it.')
    return self.verify_s[gamma]

  def verifier_s(self, calls: int, tokens: int, gamma: int) -> float:
    """Returns the seconds of some verifier calls.

      calls * verifier_token_s
        + (tokens - calls) * (verify(gamma) - verifier_token_s) / gamma

    A call costs the time of one token. Each further token costs its share of
    the additional time of a block. The sum is calls * verify(gamma) if each
    call reads gamma + 1 tokens, as in speculative decoding.
    """
    seconds = calls * self.verifier_token_s
    if gamma:
      more = self.verify(gamma) - self.verifier_token_s
      seconds += (tokens - calls) * more / gamma
    return seconds

  def speedup(self, tokens_per_call: Any, drafter_calls: Any, gamma: Any):
    """Returns the modelled speed-up over the verifier alone; takes arrays.

      tokens_per_call * verifier_token_s
        / (drafter_calls * drafter_token_s + verify(gamma))

    verify is linear between measured gammas, and nan above them.
    """
    blocks = sorted(({0: self.verifier_token_s} | self.verify_s).items())
    verify = np.interp(gamma, *np.transpose(blocks), right=math.nan)
    call_s = drafter_calls * self.drafter_token_s + verify
    return tokens_per_call * self.verifier_token_s / call_s

  def break_even(self, gammas: Sequence[int]) -> float:
    """Returns the least acceptance with which strict decoding pays, or inf.

    It is that of all positions, so that a call emits 1 + a + ... + a^gamma
    tokens, at the best gamma.
    """
    rates, sizes = np.linspace(0, 1, 1001), np.array(gammas)
    tokens = np.cumsum(rates[:, None] ** np.arange(sizes.max() + 1), axis=1)
    pays = (self.speedup(tokens[:, sizes], sizes, sizes) >= 1).any(1)
    return float(rates[pays].min(initial=math.inf))


class CostMeasurement(Schema):
  """The lowest unit costs over the repeats of one measurement."""

  low: Costs
  processor: str | None = None


class CostMeasurements(Schema):
  """All measurements of unit costs in the course of a sweep."""

  times: Annotated[list[CostMeasurement], pydantic.Field(min_length=1)]

  @property
  def costs(self) -> Costs:
    """The lowest of each cost over the measurements of one processor."""
    # A sweep may go on elsewhere.
    last = self.times[-1].processor
    lows = [x.low for x in self.times if x.processor == last]

    def minima(table: str) -> dict[int, float]:
      tables = [getattr(low, table) for low in lows]
      return {key: min(t[key] for t in tables) for key in tables[0]}

    return Costs(
      verifier_token_s=min(low.verifier_token_s for low in lows),
      drafter_token_s=min(low.drafter_token_s for low in lows),
      verify_s=minima('verify_s'),
      drafts_s=minima('drafts_s'),
    )

  @classmethod
  def from_json(cls, text: str | bytes) -> 'CostMeasurements':
    """Reads the text of a `costs.json`."""
    try:
      measured = cls.parse(files.parse_json(text))
      costs = [x.low for x in measured.times]
      names = [(x.verify_s.keys(), x.drafts_s.keys()) for x in costs]
      if any(x != names[0] for x in names):
        raise ValueError('measurements must have the same units')
    except ValueError as e:
      raise ValueError(f'costs: {e}; measure them again.') from None
    return measured
