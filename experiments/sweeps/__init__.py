"""Sweeps: every point of a config, decoded, kept and resumed.

fields         Fields of a config, with their types.
preflight      Facts of a sweep before it starts.
plan           Curves and points of a config.
phases         The phases of a sweep: plan, open, load, decode, collect, report.
deciding       The decision of a sweep.
multihost      Several processes that decode together.
ray_cluster    Shards as tasks of a Ray cluster.
worker         A pair of models that decodes points.
sequence       Cascades of whole answers.
costs          Measured seconds of a call of each model.
workdirs       Files of a sweep.
wandb_run      A run of Weights & Biases that has the summary of a sweep.
"""
