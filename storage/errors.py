"""How a store can fail, the same for every engine."""


class StoreError(Exception):
    """Anything a store can fail with."""


class CannotOpenError(StoreError):
    """The database cannot be used at all; the message says why, for the operator."""


class AlreadyClaimedError(CannotOpenError):
    """Another daemon has claimed this database."""


class UnavailableError(StoreError):
    """The database cannot do it now; another attempt may succeed.

    Nothing was written, unless the answer to a commit was lost.
    """


class ConstraintError(StoreError):
    """The database refused a change that breaks one of the schema's constraints.

    `constraint` is its name in the schema, or "" where the engine does not report it.
    """

    def __init__(self, constraint: str, detail: str) -> None:
        super().__init__(detail)
        self.constraint = constraint
