"""Failed checks of devices, and rewards, that the staff judges."""
