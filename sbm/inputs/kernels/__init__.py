"""Compiled loops of the readers: text, names of features, tables of ids."""
