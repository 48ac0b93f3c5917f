"""Kubernetes and Slurm on this machine."""
