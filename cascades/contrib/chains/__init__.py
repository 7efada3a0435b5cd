"""Chained drafters: a model that drafts, and a drafter that drafts for it.

chain_drafter  two models that draft together
chain_spec     their names, 'tiny-drafter+ngram', and their options
"""
