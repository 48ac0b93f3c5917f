"""The daemon: its parts built from the settings, its life, and its work for the marketplace."""
