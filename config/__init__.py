"""Settings: typed, checked, every mistake reported at once."""
