"""The failures of a store, the same for every engine."""

import logging
from enum import StrEnum


class Cause(StrEnum):
    """Reason why a database refuses a unit of work; its value is a label of the metrics."""

    UNREACHABLE = "unreachable"  # no connection, or it was lost
    SILENT = "silent"  # no answer in time
    READ_ONLY = "read_only"  # every server that answers is a standby, or refuses to write
    WENT_BACK = "went_back"  # the database lost changes that this process has seen
    UNKNOWN_OUTCOME = "unknown_outcome"  # the answer to a commit was lost
    BUSY = "busy"  # no free connection, or too many conflicts with other writers
    FULL = "full"  # no space on the disk of the database
    OTHER = "other"


class StoreError(Exception):
    """Anything a store can fail with.

    `is_logged` says that the store has logged the failure itself, once for all units that it hits.
    """

    is_logged = False


class CannotOpenError(StoreError):
    """The database cannot be used at all; the message has the reason for the operator."""


class AlreadyClaimedError(CannotOpenError):
    """Another daemon has claimed this database."""


class UnavailableError(StoreError):
    """The database cannot do it now; another attempt may succeed.

    Nothing was written, unless it is an `UnknownOutcomeError`.

    Args:
        message: the failure, for the log.
        cause: its kind, for the metrics.
    """

    def __init__(self, message: str, cause: Cause = Cause.OTHER) -> None:
        super().__init__(message)
        self.cause = cause


class UnknownOutcomeError(UnavailableError):
    """The answer to a commit was lost: the unit was written, or it was not.

    It is never written later: a repetition waits for the commit, or finds it undone.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, Cause.UNKNOWN_OUTCOME)


class ConstraintError(StoreError):
    """The database refused a change that breaks one of the schema's constraints.

    `constraint` is its name in the schema, or "" where the engine does not report it.
    """

    def __init__(self, constraint: str, detail: str) -> None:
        super().__init__(detail)
        self.constraint = constraint


def level_of(error: StoreError, usual: int) -> int:
    """Return the level at which a caller logs a failure of the store.

    Args:
        error: the failure.
        usual: the level for a failure that the store has not logged itself.
    """
    return logging.DEBUG if error.is_logged else usual
