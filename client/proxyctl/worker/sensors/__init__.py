"""What a device measures of itself. What cannot be read is absent, and never 0."""
