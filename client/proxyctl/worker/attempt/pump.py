"""Sends the logs of one attempt while it runs, in a thread of its own.

A stop must not wait for a daemon that is slow to take a log.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from proxyctl.worker.base.link import LinkError, RefusedError
from proxyctl.worker.base.retries import Retries

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxyctl.worker.attempt.log_sender import LogSender

_LOOK_SECONDS: Final = 1.0


class Pump:
    """Calls a sender whenever there may be more.

    Args:
        name: of the thread.
        refused: called with the reason when the daemon takes no more.
        look_seconds: between two looks for changes that the bell has not announced.
    """

    def __init__(
        self,
        name: str,
        sender: LogSender,
        refused: Callable[[RefusedError], object],
        *,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._look_seconds = look_seconds
        self._sender = sender
        self._refused = refused
        self._rung = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=f"log {name}", daemon=True)
        self._thread.start()

    def ring(self) -> None:
        """Check for new bytes of the log."""
        self._rung.set()

    def close(self) -> None:
        """End the thread, after the request that is under way."""
        self._is_closing = True
        self._rung.set()
        self._thread.join()

    def _run(self) -> None:
        retries = Retries()
        while not self._is_closing:
            try:
                has_more = self._sender.send()
            except LinkError as error:
                self._rung.wait(retries.failed(error.after))
            except RefusedError as error:
                self._refused(error)
                return
            else:
                retries.succeeded()
                if not has_more:
                    self._rung.wait(self._look_seconds)
            self._rung.clear()
