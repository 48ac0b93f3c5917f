"""Routes of files, and downloads."""
