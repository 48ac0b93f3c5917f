"""The task of an attempt: its limits, its processes, and the time to prepare."""
