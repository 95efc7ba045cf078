"""The parts of a training around its passes: setup, checkpoints, ranks."""
