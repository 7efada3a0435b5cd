"""What the guides say of the code and of what was measured, as Markdown.

inventory  What the code has: rooms, commands, configs, methods, models.
timings    What benchmarks gave, from their committed figures.
findings   What sweeps gave, from their committed results, and the headlines.
markdown   Tables, and lines of 80.
"""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / 'experiments/results'
