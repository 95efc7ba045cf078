"""Weston-Watkins by blocks of classes: weights travel, variables stay (Alber et al. 2016)."""
