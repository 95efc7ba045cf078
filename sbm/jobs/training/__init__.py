"""What trainings share: the passes over blocks, what goes around them, and who takes part."""
