"""Readers of text, tables and matrices; each yields rows with the ids of the input."""
