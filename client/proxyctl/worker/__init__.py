"""The agent of a device that works: takes jobs, runs them walled in, and sends their results."""
