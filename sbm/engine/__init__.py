"""Passes over blocks for one or more models: memory, prefetching, steps, certificates."""
