"""What keeps the daemon from starting, told to the operator in one line."""


class CannotServeError(Exception):
    """Something that the daemon needs cannot be used; the message says what and why."""
