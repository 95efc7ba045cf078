"""Several processes, on one machine or many, as one."""
