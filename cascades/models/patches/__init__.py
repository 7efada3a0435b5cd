"""Corrections of gemma, flax and JAX, one file each.

The docstring of each file names the upstream version that makes it unnecessary.

light_import   imports gemma without TensorFlow
router_norm    normalizes the input of a mixture's router once
ragged_dot     batches a function of which JAX has no `vmap`
"""
