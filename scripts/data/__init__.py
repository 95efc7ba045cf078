"""Make data sets."""
