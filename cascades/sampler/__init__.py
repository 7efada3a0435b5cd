"""Strings in, strings and counts out.

sampler              `Sampler`: a pair of models, and the options of decoding
pair                 loads the models and binds the drafter
requests, prompts    options of an answer; prompts as token ids
outputs              answers, and states that conversations continue from
batching             shapes of batches, and the engine that decodes rows
continuous_batching  the row of a finished answer takes the next prompt
stopping, keys       stop conditions, and random keys, of answers
scoring              log-probabilities of given texts under the target
agreement            greedy agreement between a drafter and a verifier
"""
