"""Unit costs: measured seconds of one call of each model.

They are the units of the modelled latency. A workdir keeps its measurements in
`costs.json`.
"""

import math
from typing import Annotated

import pydantic

from cascades import files
from cascades.files import Positive, Schema

# JSON has only strings for keys.
_Number = Annotated[files.Count, pydantic.BeforeValidator(int)]


class Costs(Schema):
  """Measured unit costs of the decoding loop, in seconds for one sequence.

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

  def units(self) -> dict[str, float]:
    """Returns every cost in seconds, by its name in words."""
    return {
      "the verifier's token": self.verifier_token_s,
      "the drafter's token": self.drafter_token_s,
      **{f'a block of {k} drafts': s for k, s in self.verify_s.items()},
      **{f'a token of {k} drafts': s for k, s in self.drafts_s.items()},
    }


class CostRange(Schema):
  """The range of unit costs over the repeats of one measurement."""

  low: Costs
  high: Costs
  processor: str | None = None


class CostMeasurements(Schema):
  """All measurements of unit costs in the course of a sweep."""

  times: Annotated[list[CostRange], pydantic.Field(min_length=1)]

  @property
  def _lows(self) -> list[Costs]:
    """The low costs of the last processor; a sweep may go on elsewhere."""
    last = self.times[-1].processor
    return [x.low for x in self.times if x.processor == last]

  @property
  def costs(self) -> Costs:
    """The lowest of each cost over the measurements of one processor."""
    lows = self._lows

    def minima(table: str) -> dict[int, float]:
      tables = [getattr(low, table) for low in lows]
      return {key: min(t[key] for t in tables) for key in tables[0]}

    return Costs(
      verifier_token_s=min(low.verifier_token_s for low in lows),
      drafter_token_s=min(low.drafter_token_s for low in lows),
      verify_s=minima('verify_s'),
      drafts_s=minima('drafts_s'),
    )

  def drift(self) -> tuple[str, float]:
    """Returns the largest change between the first and last measurement.

    Costs are divided by the verifier's cost of a token, as in the modelled
    latency, so that a machine that is slower overall has not changed.
    """
    first, last = (
      {name: s / c.verifier_token_s for name, s in c.units().items()}
      for c in (self._lows[0], self._lows[-1])
    )
    ratios = {name: last[name] / first[name] for name in first}
    return max(ratios.items(), key=lambda item: abs(math.log(item[1])))

  @classmethod
  def from_json(cls, text: str | bytes) -> 'CostMeasurements':
    """Reads the text of a `costs.json`."""
    try:
      measured = cls.parse(files.parse_json(text))
      names = [{*c.units()} for t in measured.times for c in (t.low, t.high)]
      if any(units != names[0] for units in names):
        raise ValueError('measurements must have the same units')
    except ValueError as e:
      raise ValueError(f'costs: {e}; measure them again.') from None
    return measured
