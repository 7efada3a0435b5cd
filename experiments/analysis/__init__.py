"""Frames that compare the points of a sweep, without a page or a model.

runs               The contents of a workdir: points, and a row for each answer.
analysis_config    Margins, targets and bootstrap settings.
comparisons        Quality against cost, with intervals; kinds; the race.
certification      The setting to use, certified or fixed.
"""
