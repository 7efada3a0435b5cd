"""The check of a new device: phases in order of worth, in one process.

  device_phases        the table of phases, and the sizes that they run at
  measuring            measurements one after the other, with a limit
  random_models        models of Gemma's shapes with random weights
  device_facts         phase: device, memory, versions and copying speed
  device_correctness   phase: strict decoding, and sampled laws
  forward_costs        phase: reading 1 to 17 tokens, and a drafter's step
  loop_speeds          phases: the loop by its floor, and by the verifier alone
  device_table         all figures as a table

A phase is a function that yields `Measurement`s. Each has a name, so that a
measurement that did not fit is named, and measured by the next run.
"""
