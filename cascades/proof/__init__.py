"""Whether a method does what it declares.

exact  Models whose laws are known, and laws by enumeration.
audit  Of a method somebody wrote: a verdict, and examples.
"""
