"""From rows of text to the blocks of a store: ids, labels, weights, the deal, the files."""
