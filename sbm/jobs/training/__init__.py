"""What goes around the passes of a training: its problem, its start, its commits, its processes."""
