"""Failed checks of devices, rewards, and appeals, for the judgement of the staff."""
