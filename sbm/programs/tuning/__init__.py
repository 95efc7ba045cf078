"""Cross-validation of many values of C."""
