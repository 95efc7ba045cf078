"""What the machine sets: memory, its limits, threads that read ahead, compiled kernels."""
