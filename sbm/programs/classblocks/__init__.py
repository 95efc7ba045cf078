"""Weston-Watkins by blocks of classes (Alber, Zimmert, Dogan & Kloft 2016)."""
