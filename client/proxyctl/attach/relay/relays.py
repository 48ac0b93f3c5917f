"""How an exit carries connections here: by epoll and splice where there is Linux, else by asyncio.

Both do the same; their common interface is `Relays`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol

from proxyctl.attach.relay.relay import AsyncioRelays

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from proxyctl.attach.relay.attempts import Attempt, Connected
    from proxyctl.protocol.addresses import Address

# Set to `asyncio`, this variable of the environment has connections carried as they are where there
# is no Linux: for tests, and for an owner who finds a fault in the other way.
CHOICE: Final = "PROXYCTL_RELAY"


class Meter(Protocol):
    """Counts every byte."""

    def count(self, size: int) -> float:
        """Count bytes; return the seconds to wait before the next read."""

    def most(self) -> int:
        """Return how many bytes to read at once at most, so that limits are met closely."""


class Work(Protocol):
    """A work connection that waits, or whose dial is under way."""

    is_lost: bool

    def close(self) -> None:
        """Close it; no effect if it is lost."""

    def reset(self) -> None:
        """Close it so that the other side sees a reset; without effect if it is lost."""

    def tend(self) -> None:
        """See to it that a dead peer is noticed. To be called now and then while it is open."""


class AnyRelay(Protocol):
    """Two connections, joined."""

    @property
    def moved_at(self) -> float:
        """Time of the last moved byte, or of the beginning (loop time)."""

    def tend(self) -> None:
        """Reset both sockets if one broke and no event told of it. To be called now and then."""

    def abort(self) -> None:
        """Reset both sockets immediately."""


class Relays(Protocol):
    """Makes relays and their work connections."""

    def connect(self, address: Address, port: int, seconds: float, done: Connected) -> Attempt:
        """Begin to connect to an address.

        Args:
            address: of the other side.
            port: of the other side.
            seconds: how long that may take; then the outcome is a TimeoutError.
            done: called with a connected socket, which its receiver owns, or with an error.
        """

    def begin_park(
        self,
        sock: socket.socket,
        hello: bytes,
        lost: Callable[[], None],
        ready: Callable[[Work], None],
        done: Callable[[], None],
    ) -> Attempt | None:
        """Keep a socket waiting as a work connection; return None if it waits now, or is closed.

        Args:
            sock: owned by the callee from here on, even after an error.
            hello: is sent on it.
            lost: called once when the other side has ended it, before `begin_join`; and perhaps
                later.
            ready: called with the work connection before the other side can have the hello; never
                for a socket that broke.
            done: called when a returned attempt is over.
        """

    def begin_join(
        self,
        work: Work,
        target: socket.socket,
        *,
        meter: Meter,
        said: Callable[[bytes], None],
        over: Callable[[AnyRelay], None],
        began: Callable[[AnyRelay], None],
        done: Callable[[OSError | None], None],
    ) -> Attempt | None:
        """Relay between a work connection and a target; return None if both are joined now.

        Of a lost work connection the target is reset.

        Args:
            work: the argument of `ready` in `begin_park`.
            target: it is owned from here on, even after an error.
            meter: counts every byte, both ways.
            said: called once, with the first bytes from the daemon's side.
            over: called once, when the relay has ended.
            began: called with the relay before it moves a byte.
            done: called when a returned attempt is over, with the error of a target that broke;
                then both sockets are closed.
        """

    async def hand_over(self, work: Work, protocol: asyncio.Protocol) -> None:
        """Hand a work connection over to an asyncio protocol, like a new connection.

        Raises:
            OSError: it is lost.
        """

    async def closed(self) -> None:
        """Wait until attempts that were cancelled have released their sockets."""

    def cut(self) -> None:
        """Close the sockets that have ended but still have bytes on their way."""

    def close(self) -> None:
        """Close the objects that all relays share; no relay is left by then."""


def make_relays(loop: asyncio.AbstractEventLoop) -> Relays:
    """Return the best implementation for this machine."""
    if os.environ.get(CHOICE) == "asyncio":
        return AsyncioRelays(loop)
    try:
        # Not on top: it needs functions that Python lacks on other systems.
        from proxyctl.attach.relay.relay_linux import EpollRelays  # noqa: PLC0415 - see above

        return EpollRelays(loop)
    except (ImportError, AttributeError, OSError, NotImplementedError):
        return AsyncioRelays(loop)
