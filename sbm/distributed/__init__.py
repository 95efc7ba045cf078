"""Training with several ranks, on one machine or many."""
