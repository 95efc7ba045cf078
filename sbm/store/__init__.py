"""The bytes: text, blocks, runs and models; knows no mathematics."""
