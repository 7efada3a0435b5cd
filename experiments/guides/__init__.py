"""Generated parts of the guides, as Markdown.

inventory  Tables of rooms, commands, configs, methods and models.
"""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
