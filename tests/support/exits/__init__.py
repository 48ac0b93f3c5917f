"""Exits: devices, agents, their API and their daemon."""
