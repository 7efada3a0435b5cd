"""What the guides say of the code, as Markdown.

inventory  What the code has: rooms, commands, configs, methods, models.
"""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
