"""The erasure and the export of a user: the treatment of every column, and its statements."""
