"""Readers of text, tables and matrices: each yields rows with ids as they were written."""
