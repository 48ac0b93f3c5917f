"""The agent of a device that works: takes jobs, runs them walled in, brings what they made."""
