"""Strings in, strings and counts out.

sampler    `Sampler`: a verifier, what drafts for it, and options.
batching   Rows of many prompts, kept busy.
memory     What fits, before it is tried.
scoring    How likely given texts are.
agreement  Where two greedy answers part.
"""
