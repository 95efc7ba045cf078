"""Figures of runs, and their display as a page or picture."""
