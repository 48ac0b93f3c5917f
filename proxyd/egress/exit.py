"""The ways out: a gateway connects a session to its targets with them.

`DirectExit` leaves from this machine itself; devices of owners have `proxyd.exits.dialling`. A
gateway gets its exits from `build`, and does not know how they reach a target.
"""

import socket
from collections.abc import Callable, Hashable
from typing import Protocol

from proxyd.wire.events import Address, Failure

# Takes the outcome of a dial: a connected non-blocking socket, the callee's from here on and still
# watched by the poller, or the reason of the failure; and whether the target may have sent
# something.
Done = Callable[[socket.SocketType | Failure, bool], None]


class Cancellable(Protocol):
    """Operation that can be cancelled."""

    __slots__ = ()

    def cancel(self) -> None:
        """Cancel the operation; its outcome is not reported."""


class Exit(Protocol):
    """One way out."""

    __slots__ = ()

    def dial(self, host: Address | str, port: int, asker: Hashable, done: Done) -> Cancellable:
        """Begin to connect to a target.

        Args:
            host: an address, or a name to look up.
            port: the target's port.
            asker: the session that it is for, which competes with others for look-ups.
            done: called once, perhaps before this returns, unless the dial is cancelled first.
        """

    def change_seconds(self, seconds: float) -> None:
        """Set the longest time of a dial, also for running ones."""

    def close(self) -> None:
        """Stop watching deadlines."""
