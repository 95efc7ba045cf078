"""What goes around the passes of a training: its start, its commits, its ranks."""
