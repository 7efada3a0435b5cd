"""Frames that compare the points of sweeps, without a page or a model.

runs               The contents of workdirs, as one set of points.
analysis_config    Margins, targets and bootstrap settings.
comparisons        Quality against cost, with intervals.
method_kinds       Kinds of decoding, each by its best point.
certification      The setting to use, certified or fixed.
mixture            All tasks together: scores, headline results, the race.
reference_points   The models alone, strict leniences and oracles.
"""
