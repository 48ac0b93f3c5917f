"""Commands about failed checks of devices, rewards and appeals."""
