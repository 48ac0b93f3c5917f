"""Jobs: their posting, pay, review and end, their copies, and their needs."""
