"""Pipe through which supervisors notify the agent of changes of attempts."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from proxyctl.worker.base import names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_NAME_MAX_BYTES: Final = 128


class Bell:
    """A socket in the agent's folder, and the thread that listens there.

    A ring without a listener is lost: the agent also looks without it now and then.

    Args:
        callback: is given the name of an attempt's folder; must not block.

    Raises:
        OSError: the socket cannot be made.
    """

    def __init__(self, folder: Path, callback: Callable[[str], None]) -> None:
        self._callback = callback
        path = folder / names.BELL
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # The path of a socket has 107 bytes at most, and this folder's may have more.
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            self._socket.bind(f"/proc/self/fd/{descriptor}/{names.BELL}")
        except OSError:
            self._socket.close()
            raise
        finally:
            os.close(descriptor)
        self._thread = threading.Thread(target=self._listen, name="bell", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):  # not connected, which says nothing here: it wakes the thread
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while True:
            data = self._socket.recv(_NAME_MAX_BYTES)
            if not data:
                return
            self._callback(data.decode("ascii", "replace"))
