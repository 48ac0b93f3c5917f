"""Names, records and limits, which all parts of an exit use."""
