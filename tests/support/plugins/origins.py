"""The origin of an unclosed socket, named in its ResourceWarning: a plugin of pytest.

The collector may meet such a socket in any later test, and that test fails. The origin leads to the
code that has lost the socket.
"""

import os
import socket
import sys
from collections import OrderedDict
from types import CodeType

import pytest

FRAMES = 8  # of the callers; asyncio and aiohttp take half of them
KEPT = 50_000  # origins; the oldest sockets are closed long since

_PATCH = pytest.StashKey[pytest.MonkeyPatch]()


class Origins:
    """Notes the test and the callers that make each socket, by the socket's identity.

    A weak reference would be dead when the collector warns.
    """

    def __init__(self) -> None:
        self._init = socket.socket.__init__
        self._repr = socket.socket.__repr__
        self._made: OrderedDict[int, tuple[str, list[tuple[CodeType, int]]]] = OrderedDict()

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Record the origin of every new socket, and show it in the socket's `repr`."""
        origins = self

        def noting(self: socket.socket, *args: int, **kwargs: int) -> None:
            origins._init(self, *args, **kwargs)
            origins.note(self)

        def naming(self: socket.socket) -> str:
            return f"{origins._repr(self)}{origins.of(self)}"

        patch.setattr(socket.socket, "__init__", noting)
        patch.setattr(socket.socket, "__repr__", naming)

    def note(self, sock: socket.socket) -> None:
        """Keep the test that runs, and the callers of this moment."""
        frame, frames = sys._getframe(2), list[tuple[CodeType, int]]()
        while frame is not None and len(frames) < FRAMES:
            frames.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back  # type: ignore[assignment]
        self._made.pop(id(sock), None)
        self._made[id(sock)] = os.environ.get("PYTEST_CURRENT_TEST", "no test"), frames
        if len(self._made) > KEPT:
            self._made.popitem(last=False)

    def of(self, sock: socket.socket) -> str:
        """Return the origin of a socket in words; "" if it is unknown."""
        if id(sock) not in self._made:
            return ""
        test, frames = self._made[id(sock)]
        places = " < ".join(f"{code.co_filename}:{line}" for code, line in frames)
        return f" made in {test} by {places}"


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    """Begin to note origins."""
    config.stash[_PATCH] = pytest.MonkeyPatch()
    Origins().patch(config.stash[_PATCH])


@pytest.hookimpl
def pytest_unconfigure(config: pytest.Config) -> None:
    """End it."""
    config.stash[_PATCH].undo()
