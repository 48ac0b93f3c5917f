"""The limits of one attempt, which the kernel holds: one module for each way."""
