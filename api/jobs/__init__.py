"""Routes of jobs, attempts and reviews."""
