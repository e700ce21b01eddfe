"""A study on three SLURM nodes, one job of which is cancelled, and one comes back by itself."""
