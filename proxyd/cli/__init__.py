"""The operator's command line: the code of its commands."""
