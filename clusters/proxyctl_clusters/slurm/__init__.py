"""Jobs of a Slurm cluster."""
