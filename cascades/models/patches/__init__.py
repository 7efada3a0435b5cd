"""Corrections of gemma, flax and JAX, one file each.

The docstring of each file names the upstream version that makes it unnecessary.

light_import   imports gemma without TensorFlow
router_norm    normalizes the input of a mixture's router once
ragged_dot     gives mixtures of experts a `vmap`, which JAX lacks
"""
