"""Sandboxes for jobs: one module for each kind, all behind `base.Executor`.

Every kind of sandbox is held against `tests/support/workers/battery.py`, a list of the deeds that a
job must not be able to do.
"""
