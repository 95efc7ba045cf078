"""Learning from rows that come once."""
