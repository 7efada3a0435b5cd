"""Frames that answer a question about points; no page, no model.

runs         What workdirs hold, as one table.
choice       What is asked of a comparison.
comparisons  Quality against cost, with intervals.
kinds        Kinds of decoding, each by its best point.
calibration  Leniences chosen on one half, judged on the other.
risk         Leniences that lose little, with a guarantee.
race         Arms against each other on the clock.
headline     What a sweep comes to.
mixture      All tasks together.
cuts         The summary in parts, and the best point of each.
shown        The answers that stand for a sweep.
blocks       The blocks of an answer, and when they were there.
roles        Models alone, and what cannot be done.
"""
