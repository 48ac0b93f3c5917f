"""What one attempt may use, held by the kernel: one module for each way to have it held."""
