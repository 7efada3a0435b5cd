"""What `experiments.benchmark` can time, a module each.

A suite has `measure(config)`, which yields figures as they are known, and
`table(figures)`, which prints them.
"""
