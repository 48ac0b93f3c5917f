"""Inputs and outputs of jobs."""
