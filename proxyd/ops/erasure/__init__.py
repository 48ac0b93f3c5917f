"""Erased users: the record of erasures, and their clients' addresses in the access log."""
