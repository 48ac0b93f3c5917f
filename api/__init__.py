"""The HTTP face of the marketplace: routes, request and response types, errors."""
