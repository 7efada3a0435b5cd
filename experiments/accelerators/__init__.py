"""The check of a new device: phases in order of worth, each in its own file.

  device_phases        the table of phases, and the sizes that they run at
  measuring            a phase's measurements, one after the other, with a limit
  supervising          a process that measures, and its end if it hangs
  phase_results        the file of a phase
  random_models        models of Gemma's shapes with random weights
  device_facts         phase: device, memory, versions and copying speed
  device_correctness   phase: strict decoding, and sampled laws
  forward_costs        phase: reading 1 to 17 tokens, and a drafter's step
  loop_speeds          phases: the loop by its floor, and by the verifier alone
  real_pair            phase: Gemma 3 270M with its drafter
  device_tables        figures of a phase as a table
  device_summary       all phases as tables, sentences and verdicts
  device_page          the page, and the table in Markdown

A phase is a function that yields `Measurement`s. Each has a name, so that a
measurement that did not fit is named, and measured by the next run.
"""
