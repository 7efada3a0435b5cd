"""The engine of CPUs, and matrices in eight bits for every device.

blocked    the order of matrices that a CPU reads fastest
int8       matrices in eight bits
row_exact  results for a row that do not depend on other rows
engine     parameters of a model in these layouts
stored     eight bits in safetensors; models that share a table

`models.language.cpu` imports it for the models that `load_model` opens.
"""

from cascades.contrib.cpu import engine, int8, row_exact, stored

__all__ = ['engine', 'int8', 'row_exact', 'stored']
