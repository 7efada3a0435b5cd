"""Configuration of the documentation site; `python -m sphinx -W docs site`."""

import importlib
import os
import pathlib
import sys

_DOCS = pathlib.Path(__file__).parent
sys.path[:0] = [str(_DOCS / '_ext'), str(_DOCS.parent)]
# Drawings and tables need no accelerator.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')

project = 'cascades'
author = 'the authors of cascades'
release = version = importlib.import_module('cascades').__version__
# No date: the same source gives the same pages.
copyright = author

extensions = [
  'myst_parser',
  'sphinx.ext.autodoc',
  'sphinx.ext.napoleon',
  'plain_docstrings',
  'reference_pages',
  'parts',
  'repository_pages',
  'site_checks',
]
# Quotes stay as they were typed; fences name their language.
smartquotes_action = 'D'
highlight_language = 'text'

# Every reference and every link must lead somewhere: unknown names of this
# project are warnings, and `-W` makes warnings errors. Names of other packages
# cannot be looked up without a network.
nitpicky = True
nitpick_ignore_regex = [
  ('py:.*', r'(?!cascades\b|experiments\b|configs\b).*'),
  # In annotations, classes that the reference does not list; pages link to
  # names by `py:obj`.
  ('py:class', '.*'),
]

myst_enable_extensions = ['dollarmath', 'attrs_block']
myst_heading_anchors = 3

autodoc_default_options = {'members': True}
autodoc_member_order = 'bysource'
autodoc_typehints_format = 'short'
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# Signatures have the types.
napoleon_attr_annotations = False
add_module_names = False
python_maximum_signature_line_length = 72
toc_object_entries_show_parents = 'hide'

html_theme = 'furo'
html_title = f'cascades {version}'
html_static_path = ['_static']
html_css_files = ['site.css']
html_math_renderer = 'mathml'
html_copy_source = False
html_show_sphinx = False
