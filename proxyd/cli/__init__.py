"""The operator's command line: what each command does."""
