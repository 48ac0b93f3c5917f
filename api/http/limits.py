"""Bounds on the use of the API by its clients: rates, connections, memory and time.

An operator sets all of `ApiLimits` but its `times`, which stay as they were at the start.
"""

from dataclasses import dataclass

from msgspec import Struct

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class BodyPace:
    """How slowly a request body may come.

    Attributes:
        grace_seconds: the time before the rate below counts: a slow start is no attack.
        bytes_per_second_min: 131 kbit/s, which is less than any mobile network of today.
        timeout_seconds: the most for a body that is read whole.
    """

    grace_seconds: float = 5.0
    bytes_per_second_min: int = 16 * 1024
    timeout_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class ConnectionTimes:
    """The times of a server's connections.

    Attributes:
        keepalive_seconds: how long a connection waits for the head of its next request.
        linger_seconds: after a refusal, for a client that is still sending its body.
        shutdown_seconds: for requests in progress when the server stops.
        tls_seconds: for a TLS handshake.
        tls_shutdown_seconds: for the end of TLS.
        sweep_seconds: between two looks for clients that do not read their answers.
        stalled_seconds: without progress: then a connection in use makes room for another.
        read_bytes_per_second_min: the least rate of an answer that leaves in parts.
        insistence_seconds: a caller that is refused more often than it may call waits for each
            further refusal: an answer costs the server more than a request costs the client, and so
            a connection gets four a second.
        login_check_seconds: between two checks of the login or key of a request in progress, each a
            look-up of a primary key: the request ends within 15 s of its key, also where the store
            takes seconds to answer.
        event_write_seconds: for one event; a client that has not read it by then is gone.
    """

    body: BodyPace = BodyPace()
    keepalive_seconds: float = 75.0
    linger_seconds: float = 2.0
    shutdown_seconds: float = 5.0
    tls_seconds: float = 10.0
    tls_shutdown_seconds: float = 2.0
    sweep_seconds: float = 1.0
    stalled_seconds: float = 1.0
    read_bytes_per_second_min: int = 4 * 1024
    insistence_seconds: float = 0.25
    login_check_seconds: float = 10.0
    event_write_seconds: float = 30.0


USUAL = ConnectionTimes()


class ApiLimits(Struct, frozen=True):
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
    times: ConnectionTimes = USUAL

    @property
    def share_of_connections(self) -> int:
        """How many connections one network may have: never more than half of all."""
        return min(self.connections_per_network, max(self.connections // 2, 1))
