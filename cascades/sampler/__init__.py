"""Strings in, strings and counts out.

options    What may be chosen about decoding.
asking     What may be asked of an answer.
answers    What comes out, and what a conversation goes on from.
sampler    `Sampler`: a verifier, what drafts for it, and options.
batching   Rows of many prompts, kept busy.
endings    What ends an answer beside its limit.
keys       Random keys of answers.
memory     What fits, before it is tried.
scoring    How likely given texts are.
agreement  Where two greedy answers part.
"""
