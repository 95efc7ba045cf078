"""Compiled kernels of the readers: text, feature names, tables of ids."""
