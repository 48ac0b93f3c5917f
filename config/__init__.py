"""Settings: typed, checked, with all errors in one report."""
