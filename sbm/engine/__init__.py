"""Passes over blocks, for one model or many: memory, reading ahead, steps, certificates."""
