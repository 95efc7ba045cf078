"""Compiled loops of the store: text, ids, byte planes."""
