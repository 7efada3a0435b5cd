"""Generated parts of the guides, as Markdown.

inventory  Tables of packages, commands, configs, methods and models.
"""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
