"""Images of containers, and their registries."""
