"""Kills, faults, damage and hostile input: ``python -m scripts.torture``."""
