"""The dispatch of jobs to devices, samples, and the supply of devices."""
