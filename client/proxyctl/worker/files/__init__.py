"""Files of jobs on a device: inputs, outputs, checkpoints, and their transfer."""
