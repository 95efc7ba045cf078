"""Data, benchmarks, experiments and torture tests; run as ``python -m scripts.NAME``."""
