"""Routes of files and logs, and downloads."""
