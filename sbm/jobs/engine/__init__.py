"""Passes over blocks: each is loaded once, and all that learn from it step on it."""
