"""Frames that compare the points of sweeps, without a page or a model.

runs               The contents of workdirs, as one set of points.
analysis_config    Margins, targets and bootstrap settings.
comparisons        Quality against cost, with intervals.
method_kinds       Kinds of decoding, each by its best point.
certification      The setting to use, certified or fixed.
mixture            All tasks together: scores, headline results, the race.
example_selection  The answers that a page shows token by token.
reference_points   The models alone, strict leniences and oracles.
"""
