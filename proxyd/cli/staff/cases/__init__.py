"""Commands about failed checks of devices, and about rewards."""
