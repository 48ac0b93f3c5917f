"""What the supervisor gives each of several processes (`proxy.processes`) when it starts it.

A process is forked from the supervisor, so all of this is handed over as it is: no variable of the
environment and no option says which process one is.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from proxyd.ops.sd_notify import ServiceManager
from proxyd.ops.shared_record import SharedRecord

METRICS_MAX_BYTES = 128 * 1024  # several times what all metrics of a process take
OVERVIEW_MAX_BYTES = 4096  # 64 numbers of processes, and one more


class Overview(msgspec.Struct, frozen=True):
    """Which processes live, by index and as pids (0: none), and how often one was started again."""

    pids: list[int]
    restarts: int

    def encode(self) -> bytes:
        """Return it as a record for all processes."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, record: bytes) -> Self:
        """Return what `encode` has made a record of."""
        return msgspec.msgpack.decode(record, type=cls)


@dataclass(frozen=True, slots=True)
class Role:
    """Which process this is, and what it has in common with the others.

    Attributes:
        index: its number, from 0; its log lines have it.
        is_successor: whether a process of this number has served before.
        channel: to the supervisor, which reads what a service manager would be told; at its end the
            supervisor is gone.
        watchdog_seconds: a process that is silent for so long is killed.
        metrics: what each process has counted, by index.
        overview: which processes live, and how often one was started again.
        exits_desk: listens for what the others ask of exits; None in these, and without exits.
        exits_address: where that is; empty without exits.
    """

    index: int
    is_successor: bool
    channel: socket.socket
    watchdog_seconds: float
    metrics: Sequence[SharedRecord]
    overview: SharedRecord
    exits_desk: socket.socket | None = None
    exits_address: bytes = b""

    @property
    def has_services(self) -> bool:
        """Whether this process has the API, and does what only one on a database should."""
        return self.index == 0

    def manager(self) -> ServiceManager:
        """Return the supervisor as the service manager that it is to this process."""
        return ServiceManager(self.channel.send, self.watchdog_seconds)
