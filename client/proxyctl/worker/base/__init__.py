"""Names, records, states, locks and folders, which all parts of a worker use."""
