"""Comparing models of many values of C."""
