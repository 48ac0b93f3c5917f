"""Bounds on what clients of the API may use: rates, connections, memory and time."""

from msgspec import Struct

MIB = 1024 * 1024


class Limits(Struct, frozen=True):
    """Bounds on clients of the API; rates are requests a second, 0 for none.

    Attributes:
        requests_per_second: of one login, device, or network without either.
        requests_per_second_of_user: of all logins and devices of one user.
        connections: how many may be open.
        connections_per_network: how many of one network, unless it is a trusted proxy.
        memory: bytes of bodies that have not ended and of answers that have not left.
        memory_per_network: the same, of one network.
        stall_seconds: how long a client may read nothing of its answer.
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
        """How many connections one network may have: never more than half of all."""
        return min(self.connections_per_network, max(self.connections // 2, 1))
