"""Frames that answer a question about points; no page, no model.

runs         What workdirs hold, as one table.
comparisons  Quality against cost, with intervals.
kinds        Kinds of decoding, each by its best point.
calibration  Leniences chosen on one half, judged on the other.
mixture      Of several tasks.
positions    Where in an answer tokens are deferred.
"""
