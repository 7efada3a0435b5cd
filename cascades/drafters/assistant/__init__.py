"""Assistants of Gemma 4, whose layers attend to the caches of the verifier."""
