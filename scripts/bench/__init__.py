"""Benchmarks against other tools: ``python -m scripts.bench``."""
