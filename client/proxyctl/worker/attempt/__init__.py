"""One attempt at a job: its processes, supervisor, logs and sandbox."""
