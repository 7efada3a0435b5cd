"""Strings in, strings and counts out.

sampler              `Sampler`: a pair of models, and the options of decoding
requests             options of an answer, its prompts, keys and stop conditions
outputs              answers, and states that conversations continue from
batching             shapes of batches, and the engine that decodes rows
continuous_batching  the row of a finished answer takes the next prompt
scoring              log-probabilities of given texts under the target
agreement            greedy agreement between a drafter and a verifier
"""
