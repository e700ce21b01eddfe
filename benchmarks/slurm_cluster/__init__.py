"""A study on three SLURM nodes: one job is cancelled, and one is requeued."""
