"""Frames that compare the points of sweeps, without a page or a model.

runs               The contents of workdirs, as one set of points.
analysis_config    Margins, targets and bootstrap settings.
comparisons        Quality against cost, with intervals.
method_kinds       Kinds of decoding, each by its best point.
certification      The setting to use, certified or fixed.
race               Points timed against each other on the clock.
headline           Summary of a sweep in three headline results.
mixture            Scores over all tasks together.
example_selection  The answers that a page shows token by token.
reference_points   The models alone, strict leniences and oracles.
"""
