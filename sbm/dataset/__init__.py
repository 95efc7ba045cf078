"""Rows of any input: text, tables, matrices and stores, and how they are read."""
