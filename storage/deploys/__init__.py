"""Queries on deploys, rollouts and apps."""
