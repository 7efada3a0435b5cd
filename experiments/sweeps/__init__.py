"""Sweeps: every point of a config, decoded, kept and resumed."""
