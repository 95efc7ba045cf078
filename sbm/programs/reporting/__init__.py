"""Figures of runs, and how they are drawn."""
