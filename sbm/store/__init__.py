"""Storage: text, blocks, runs and models; no mathematics."""
