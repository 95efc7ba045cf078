"""Files and words of other tools."""
