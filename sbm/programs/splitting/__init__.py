"""From rows of text to the blocks of a store."""
