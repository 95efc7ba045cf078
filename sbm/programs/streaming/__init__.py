"""Learning from rows that are seen once."""
