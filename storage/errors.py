"""What can go wrong in a store, in words that belong to no engine."""


class StoreError(Exception):
    """Anything a store can fail with."""


class CannotOpenError(StoreError):
    """The database cannot be used at all; the message says why, for the operator."""


class AlreadyClaimedError(CannotOpenError):
    """Another daemon works on this database."""


class UnavailableError(StoreError):
    """The database did not do it now, and trying again may succeed.

    Nothing was written, unless a commit was made whose answer was lost.
    """


class ConstraintError(StoreError):
    """The database refused a change that breaks one of its own rules.

    `constraint` is the rule's name in the schema, or "" where the engine does not tell it.
    """

    def __init__(self, constraint: str, detail: str) -> None:
        super().__init__(detail)
        self.constraint = constraint
