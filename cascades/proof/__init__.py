"""Whether a method does what it declares.

table_models  Small language models whose laws are known.
separation    Distributions that no proof can take for each other.
trial_rows    Distributions of many kinds to try a method on.
tabulated     What methods say of every context, as tables, and methods that
              look it up again.
enumeration   Laws by going through every block that can be emitted.
sampled       Laws by drawing from the compiled loop.
exact         All of the above under one name, for tests and audits.
audit         Of a method somebody wrote: a verdict, and examples.
engines       Of a verification somebody wrote, in NumPy: a certificate.
branching     A random generator that goes through all that it could say.
"""
