"""Strings in, strings and counts out.

sampler    `Sampler`: a pair of models that answers; outputs, conversations
requests   options of an answer, its prompts, keys and stop conditions
batching   continuous batching: the row of a finished answer takes the next
scoring    probabilities of given texts, and of the drafts of an answer
"""
