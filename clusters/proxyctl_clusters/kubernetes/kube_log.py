"""The log of a pod, shown as it grows, each byte once."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from proxyctl_clusters.kubernetes import kube_objects as objects
from proxyctl_clusters.kubernetes.kube_api import KubeError, Opened

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from proxyctl_clusters.kubernetes.kube_api import KubeApi

MISSING: Final = b"\n[some of the log is missing here: the node has thrown it away]\n"

_READ_BYTES: Final = 1 << 18
_AGAIN_SECONDS: Final = 1.0  # before the next read of a log that broke off
# Of the beginning and the end of a log, which identify it.
_KNOWN_BYTES: Final = 4096
# A node keeps ten megabytes of a log unless its owner says otherwise; a larger log is not read as a
# whole.
_WHOLE_MAX_BYTES: Final = 256 << 20


class LogFollower:
    """Shows the output of a pod, in a separate thread.

    A log that breaks off is read again from its beginning, and the shown part is skipped. The node
    throws the beginning of a long log away: then the end of the shown part is searched in the rest.
    If that is gone as well, a line reports that something is missing.

    Args:
        path: of the log on its server.
        descriptor: where it is shown.
        ring: is called when the log has come to an end, or broken off.

    Attributes:
        has_begun: it is being read.
    """

    def __init__(
        self, source: KubeApi, path: str, descriptor: int, ring: Callable[[], None]
    ) -> None:
        self.has_begun = False
        self._source = source
        self._path = path
        self._descriptor = descriptor
        self._ring = ring
        self._head = b""  # of the log on the node
        self._count = 0  # bytes of the log on the node that were shown or skipped
        self._tail = b""  # of the shown part
        self._opened = Opened()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def begin(self) -> None:
        """Begin to read, until `finish`."""
        self.has_begun = True
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Show the rest of a log whose container has ended; give up after a time."""
        self._is_over.set()
        if self.has_begun:
            self._thread.join(_AGAIN_SECONDS)  # the end of the log is mostly on its way
            self._opened.end()
            self._thread.join(seconds)
            if self._thread.is_alive():
                return
        deadline = time.monotonic() + seconds
        while not self._has_read_all() and time.monotonic() < deadline:
            time.sleep(_AGAIN_SECONDS)

    def _has_read_all(self) -> bool:
        try:
            self._read({})
        except KubeError as error:
            return 400 <= error.status < 500  # there is no log any more, or there never was one
        return True

    def _run(self) -> None:
        while not self._is_over.is_set():
            with suppress(KubeError):  # tried again
                self._read({"follow": "true"})
            self._ring()
            self._is_over.wait(_AGAIN_SECONDS)

    def _read(self, query: Mapping[str, str]) -> None:
        """Show the new bytes.

        Raises:
            KubeError: the log breaks off, or is not available.
        """
        passed, is_known = 0, True
        with closing(self._lines(query)) as pieces:
            for data in pieces:
                is_known = data.startswith(self._head[passed : passed + len(data)])
                if not is_known:
                    break
                skipped = min(len(data), max(0, self._count - passed))
                passed += len(data)
                self._take(data[skipped:])
        if not is_known or passed < self._count:
            self._find_again()

    def _find_again(self) -> None:
        """Continue in a log that has another beginning than before.

        Raises:
            KubeError: the log breaks off, or is not available.
        """
        data = b"".join(self._lines({"limitBytes": str(_WHOLE_MAX_BYTES)}))
        at = data.find(self._tail)
        rest = data if at < 0 else data[at + len(self._tail) :]
        if at < 0:
            self._show(MISSING)
        self._head, self._count = data[:_KNOWN_BYTES], len(data)
        self._show(rest)
        self._tail = (self._tail + rest)[-_KNOWN_BYTES:]

    def _lines(self, query: Mapping[str, str]) -> Generator[bytes, None, None]:
        wanted = {"container": objects.CONTAINER, **query}
        return self._source.lines(self._path, wanted, _READ_BYTES, self._opened)

    def _take(self, data: bytes) -> None:
        """Show the next bytes of the node's log."""
        self._show(data)
        if len(self._head) < _KNOWN_BYTES:
            self._head = (self._head + data)[:_KNOWN_BYTES]
        self._count += len(data)
        self._tail = (self._tail + data[-_KNOWN_BYTES:])[-_KNOWN_BYTES:]

    def _show(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
