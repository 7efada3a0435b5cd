"""Files that others made, and text that they hold: one way in and one way out.

  bounded   JSON and its lines, within bounds of size, number and depth
  schema    the fields of such a file: types, ranges, and one form of error
  paths     names in such a file, which lead to nothing outside of its folder
  display   their text on a terminal, a page, in a table; URLs without secrets

A file from a stranger may be damaged, or made to do harm. What is wrong with it
is a ValueError of one sentence that names the file, before anything is made of
its size.
"""
