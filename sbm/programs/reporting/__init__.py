"""Figures of runs, and how to show them."""
