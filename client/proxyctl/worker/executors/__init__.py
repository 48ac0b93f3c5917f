"""What runs a job walled in: one module for each kind of sandbox, all behind `base.Executor`."""
