"""The attachment of a device to daemons: an exit's and a worker's connections."""
