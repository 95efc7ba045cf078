"""Make and fetch data sets."""
