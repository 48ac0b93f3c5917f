"""The agent of `proxyctl worker`: takes jobs, runs them walled in, and reports on them."""
