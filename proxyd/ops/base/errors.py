"""The error that keeps the daemon from starting; its message is one line for the operator."""


class CannotServeError(Exception):
    """Something that the daemon needs is unusable; the message names it and the reason."""
