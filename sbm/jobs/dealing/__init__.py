"""From rows of text to the blocks of a store: ids, labels, the deal, the files."""
