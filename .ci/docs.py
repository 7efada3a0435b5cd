"""Writes the API reference of `cascades`; what can't be imported is an error.

Usage: `python .ci/docs.py FOLDER`.
"""

import pathlib
import sys
import warnings

import pdoc

import cascades

if __name__ == '__main__':
  # pdoc sees a name that is imported when first used only after its use.
  for name in cascades.__all__:
    getattr(cascades, name)
  for message in (r'Found .* does not resolve', r'(Error|Couldn.t) import'):
    warnings.filterwarnings('error', message)
  pdoc.render.configure(docformat='google')
  pdoc.pdoc('cascades', output_directory=pathlib.Path(sys.argv[1]))
