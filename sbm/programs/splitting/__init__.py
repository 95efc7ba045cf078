"""Parts of `sbm.split`: from rows of text to the blocks of a store."""
