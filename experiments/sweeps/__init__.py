"""Sweeps: every point of a config, decoded, kept and resumed.

fields         Fields of a config, with their types.
curve_plan     Curves of a config.
plan           Tasks and points of a config.
run            The run of a sweep, from its plan to its report.
worker         A pair of models that decodes points.
workdirs       Files of a sweep.
sequence       Cascades of whole answers.
costs          Measured seconds of a call of each model.
prediction     Predicted points and their speed-ups.
deciding       The decision of a sweep.
multihost      Several processes that decode together.
ray_cluster    Shards as tasks of a Ray cluster.
"""
