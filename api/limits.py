"""Bounds on what clients of the API may take, in time, number and memory."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates are requests a second, 0 for none; the rest is what may be open or in memory at once.

    `connections` is how many in all, `connections_per_network` how many of one network that is no
    trusted proxy; `memory` and `memory_per_network` are the bytes of bodies that have not come to
    their end and of answers that have not left, and `stall_seconds` is how long a client may take
    nothing of what it asked for.
    """

    requests_per_second: int = 0
    requests_per_second_of_user: int = 0
    connections: int = 1000
    connections_per_network: int = 128
    memory: int = 64 * MIB
    memory_per_network: int = 4 * MIB
    stall_seconds: float = 60.0

    @property
    def share_of_connections(self) -> int:
        """How many one network may have: where there are few in all, no more than half of them."""
        return min(self.connections_per_network, max(self.connections // 2, 1))
