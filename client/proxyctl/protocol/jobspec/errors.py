"""The error in a job's specification."""

from __future__ import annotations


class SpecError(Exception):
    """A specification that no device could run as intended.

    Attributes:
        field: the path of the wrong value, as in `inputs[0].path`.
        message: the error, in one sentence for the author of the specification.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
