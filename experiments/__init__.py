"""Around the library: files, and people who start commands.

Here, too, a room imports only what stands above it, and of `cascades` whatever
it likes; a command is one module, `python -m experiments.sweep`.

  cli         flags, mistakes in a sentence, progress
  tasks       what is asked, and the score of an answer
  records     what a run keeps, and the numbers made of it
  analysis    frames that answer a question about points
  reports     a page of those frames
  sweeps      every point of a config, decoded
  training    models and heads trained here
  benchmarks  what decoding costs, in ratios of one run
  guides      what READMEs say of the code and of what was measured
"""

# In the order of the list; `tests/imports_test.py` holds them to it.
ROOMS = (
  'cli tasks records analysis reports sweeps training benchmarks guides'
).split()
