"""Compiled loops of the store: text, ids, rows, alphas."""
