"""Inputs, outputs and logs of jobs."""
