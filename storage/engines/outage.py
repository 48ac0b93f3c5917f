"""Outage of the store, as a loop of writes meets it: one line in the log for each outage."""

import logging
from typing import final

from storage.engines.errors import StoreError, level_of


@final
class Outage:
    """Logs the first failure of consecutive ones.

    Args:
        words: begin the line; the error follows them.
        level: of a failure that the store has not logged itself.
    """

    def __init__(self, logger: logging.Logger, words: str, level: int) -> None:
        self._logger = logger
        self._words = words
        self._level = level
        self._is_on = False

    def failed(self, error: StoreError) -> None:
        """Log a failure, unless the one before was logged and no success came in between."""
        if not self._is_on:
            self._logger.log(level_of(error, self._level), "%s: %s", self._words, error)
        self._is_on = True

    def ended(self) -> None:
        """Note a success."""
        self._is_on = False
