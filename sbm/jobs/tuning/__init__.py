"""Comparing models of many values of C: what is tried, what judges it, how it is drawn."""
