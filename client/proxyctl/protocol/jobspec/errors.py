"""What is wrong with a job's specification."""

from __future__ import annotations


class SpecError(Exception):
    """A specification that no device could run as it is meant.

    Attributes:
        field: the path of what is wrong, as in `inputs[0].path`.
        message: what is wrong with it, in one sentence for the person who wrote it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
