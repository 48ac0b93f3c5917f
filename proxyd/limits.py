"""Bounds on the clients of the proxy, in time and number, and the file descriptors for them."""

import resource
from dataclasses import dataclass

DESCRIPTORS_MAX = 1_048_576  # the kernel's own default for one process (fs.nr_open)
# Of the descriptors: connections have most, and the rest is for files, the store, name servers and
# sockets that are closing.
DESCRIPTORS_SHARE = 0.8
DESCRIPTORS_PER_CONNECTION = 2  # the client's and the target's
# Where exits attach, half of the connections' share is theirs: one socket for the control of each,
# and the connections that wait for a target. A connection that has its target counts as the
# client's.
EXITS_SHARE = 0.4
# Of several processes one has the exits, and dials through them for the others: dials without a
# target yet are open there. It comes out of the connections' share.
ASKS_SHARE = 0.1
DESCRIPTORS_PER_ASK = 2  # an order may be given once more, on another connection of the exit
# Streams into jobs, where devices attach: also out of the connections' share.
STREAMS_SHARE = 0.05
# A work connection, a pair, and the user of the stream; and the same number of devices may be
# attached.
DESCRIPTORS_PER_STREAM = 5
CONTROLS_SHARE = 0.75  # of the exits' share; the rest waits for targets, or has not said who it is
PIPES_SHARE = 0.1
API_SHARE = 0.05
API_MOST_DIVISOR = 2  # an operator may give the API half of them; the proxy has that much less
RACERS_SHARE = 0.02
# Where apps are reached: clients; some have no stream into a job just now.
APPS_SHARE = 0.1
API_CONNECTIONS_MIN = 64  # so that an operator reaches a small machine
API_CONNECTIONS_MAX = 10_000  # at 100 KiB each in the worst case that is a gigabyte
DESCRIPTORS_PER_PIPE = 2
ASSOCIATIONS_SHARE = 0.1
ASSOCIATIONS_MAX = 7_000  # at two ports each, half of the ports that Linux hands out by default


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Bounds on connections: times in seconds, numbers of simultaneous ones.

    `datagrams_per_second` is for each session; 0 for no limit.
    """

    handshake_seconds: float
    dial_seconds: float
    idle_seconds: float
    connections_per_address: int
    connections_total: int
    dials_waiting: int
    racers: int
    pipes: int
    associations: int
    datagrams_per_second: int


@dataclass(frozen=True, slots=True)
class ExitLimits:
    """Bounds on exits: times in seconds, and numbers of simultaneous connections.

    `parked` are connections of exits that wait for a target, `arrivals` connections that have not
    sent their type yet. `asks` are dials for each of the other processes of this machine. `streams`
    are those into jobs on devices, and the same number of devices may be attached for them.
    """

    exits_total: int
    exits_per_network: int
    parked: int
    arrivals: int
    heartbeat_seconds: float
    asks: int = 0
    streams: int = 0


def raise_descriptors() -> int:
    """Raise the limit of open descriptors as far as allowed; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    descriptors = max(soft, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    return descriptors


def connections_total(
    configured: int, descriptors: int, *, with_exits: bool = False, with_asks: bool = False
) -> int:
    """Return the number of connections for a share of the descriptors, at most `configured`.

    Args:
        configured: the operator's setting; 0 for as many as that.
        descriptors: the most open descriptors.
        with_exits: whether exits attach, and take a part of that share.
        with_asks: whether other processes ask for them, which takes another part.
    """
    share = DESCRIPTORS_SHARE - (EXITS_SHARE + STREAMS_SHARE) * with_exits - ASKS_SHARE * with_asks
    affordable = int(descriptors * share) // DESCRIPTORS_PER_CONNECTION
    return min(configured, affordable) if configured else affordable


def exits_total(configured: int, descriptors: int) -> int:
    """Return the number of exits for their share of the descriptors, at most `configured`.

    Args:
        configured: the operator's setting; 0 for as many as that.
        descriptors: the most open descriptors.
    """
    affordable = int(descriptors * EXITS_SHARE * CONTROLS_SHARE)
    return min(configured, affordable) if configured else affordable


def parked_total(descriptors: int) -> int:
    """Return the number of exits' connections that may wait for a target; arrivals have half."""
    return int(descriptors * EXITS_SHARE * (1 - CONTROLS_SHARE)) * 2 // 3


def streams_total(descriptors: int) -> int:
    """Return the number of streams into jobs for a share of the descriptors."""
    return int(descriptors * STREAMS_SHARE) // DESCRIPTORS_PER_STREAM


def asks_total(descriptors: int, processes: int) -> int:
    """Return the maximum number of concurrent dials of a process through another one's exits.

    Args:
        descriptors: limit of open descriptors in the process with the exits.
        processes: the number of processes; with a single one the result is 0.
    """
    others = processes - 1
    if not others:
        return 0
    return max(1, int(descriptors * ASKS_SHARE) // (DESCRIPTORS_PER_ASK * others))


def pipes_total(descriptors: int) -> int:
    """Return the number of pipes for another share of the descriptors."""
    return int(descriptors * PIPES_SHARE) // DESCRIPTORS_PER_PIPE


def api_connections_total(descriptors: int, wanted: int = 0) -> int:
    """Return the number of connections of the API for a third share of the descriptors.

    An operator with many devices, each with a held request, may want more than that share.
    """
    share = min(max(int(descriptors * API_SHARE), API_CONNECTIONS_MIN), API_CONNECTIONS_MAX)
    return min(wanted, max(share, descriptors // API_MOST_DIVISOR)) if wanted else share


def beside_api(descriptors: int, wanted: int) -> int:
    """Return the descriptors of the other shares, without the API's surplus over its own share.

    Args:
        descriptors: the most open descriptors.
        wanted: the connections of the API that the operator wants, 0 for its share.
    """
    share = api_connections_total(descriptors)
    return descriptors - max(api_connections_total(descriptors, wanted) - share, 0)


def apps_connections_total(descriptors: int, wanted: int) -> int:
    """Return the number of clients of apps for a share of the descriptors, at most `wanted`."""
    return max(1, min(wanted, int(descriptors * APPS_SHARE)))


def beside_apps(descriptors: int, wanted: int) -> int:
    """Return the descriptors that the other shares are of; `wanted` is 0 where apps are not."""
    return descriptors - apps_connections_total(descriptors, wanted) if wanted else descriptors


def racers_total(descriptors: int) -> int:
    """Return the number of sockets that may connect beside the first one of their dial."""
    return int(descriptors * RACERS_SHARE)


def associations_total(connections: int) -> int:
    """Return the number of these connections that may relay datagrams; at least one.

    They take twice the descriptors of others, and also ports that the rest of the machine needs.
    """
    return max(1, min(int(connections * ASSOCIATIONS_SHARE), ASSOCIATIONS_MAX))
