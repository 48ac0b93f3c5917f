"""The other nodes, from the view of exits that attach here."""

import asyncio
from collections.abc import Callable
from typing import Protocol, final

from market.exits.consents import Door
from proxyd.exits.attached.attached import Attached


class Neighbours(Protocol):
    """The other nodes, which are notified of the exits here."""

    __slots__ = ()

    def __len__(self) -> int:
        """Return the number of other nodes."""
        return 0

    def since(self, device_id: str) -> int:
        """Return the time of attachment of a device that attaches now (UTC, milliseconds).

        It is later than each time before, and than any that another node has told of the device.
        """

    def attached(self, attached: Attached) -> None:
        """Notify the nodes that an exit has attached."""

    def changed(self, attached: Attached) -> None:
        """Notify the nodes that an exit stops or starts to carry, or has other limits."""

    def gone(self, attached: Attached) -> None:
        """Notify the nodes that an exit is detached."""

    def welcome(self, transport: asyncio.Transport, data: bytes) -> bool:  # noqa: ARG002 - none is
        """Accept a connection that has begun with `data`; return False if it is not from a node."""
        return False

    def doors(self) -> list[Door]:
        """Return the addresses of other nodes where devices may attach, the best first."""
        return []


@final
class Alone(Neighbours):
    """Neighbours of a node without other nodes.

    Args:
        now: the wall clock, in UTC seconds.
    """

    __slots__ = ("_now", "_since")

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._since = 0

    def since(self, device_id: str) -> int:  # noqa: ARG002 - nobody else has it
        """See `Neighbours.since`."""
        self._since = max(self._now() * 1000, self._since + 1)
        return self._since

    def attached(self, attached: Attached) -> None:
        """See `Neighbours.attached`."""

    def changed(self, attached: Attached) -> None:
        """See `Neighbours.changed`."""

    def gone(self, attached: Attached) -> None:
        """See `Neighbours.gone`."""
