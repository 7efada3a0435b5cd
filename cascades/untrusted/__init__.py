"""Reading untrusted files, and displaying untrusted text.

  bounded   reads JSON and its lines within bounds of size, number and depth
  schema    checks the fields of a file: types, ranges, and one form of error
  paths     resolves names in a file to paths inside of the file's folder
  display   escapes text for terminals, pages, tables; hides secrets of URLs

A file of somebody else may be damaged or malicious. Every fault is a ValueError
of one sentence that names the file, raised before memory of the declared size
is allocated.
"""
