"""The fence of a node: the time until which it may use its lease slices.

A node whose reports were not accepted for too long is taken for dead, and others settle its leases.
The fence is up before that, so the node hands out no unbilled byte.
"""

from collections.abc import Callable
from typing import final


@final
class Fence:
    """The end of the time in which this node may hand out bytes; its clock runs during sleep.

    Args:
        boottime: that clock, in seconds.
    """

    __slots__ = ("_boottime", "until")

    def __init__(self, boottime: Callable[[], float]) -> None:
        self._boottime = boottime
        self.until = 0.0

    @property
    def is_up(self) -> bool:
        """Whether the time is over, so that nothing may be handed out."""
        return self._boottime() >= self.until
