"""Compiled loops of the store: rows, alphas and sorting."""
