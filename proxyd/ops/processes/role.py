"""The role that the supervisor gives each of several processes (`proxy.processes`) at its start.

A process is forked from the supervisor, so all of this is handed over as it is: no variable of the
environment and no option says which process one is.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from proxyd.ops.processes.sd_notify import ServiceManager
from proxyd.ops.processes.shared_record import SharedRecord

METRICS_MAX_BYTES = 128 * 1024  # several times the size of all metrics of a process
OVERVIEW_MAX_BYTES = 4096  # 64 numbers of processes, and one more


class Overview(msgspec.Struct, frozen=True):
    """Pids of the living processes by index (0: none), and the number of restarts."""

    pids: list[int]
    restarts: int

    def encode(self) -> bytes:
        """Return it as a record for all processes."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, record: bytes) -> Self:
        """Return the overview in a record of `encode`."""
        return msgspec.msgpack.decode(record, type=cls)


@dataclass(frozen=True, slots=True)
class Role:
    """The number of this process, and the objects that it shares with the others.

    Attributes:
        index: its number, from 0; its log lines have it.
        is_successor: whether a process of this number has served before.
        channel: to the supervisor, which reads the messages for a service manager; at its end the
            supervisor is gone.
        watchdog_seconds: a process that is silent for this time is killed.
        metrics: the counts of each process, by index.
        overview: the living processes, and the number of restarts.
        exits_desk: listens for the requests of the others to exits; None in these, and without
            exits.
        exits_address: the address of that socket; empty without exits.
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
        """Whether this process has the API and the work that only one on a database should do."""
        return self.index == 0

    def manager(self) -> ServiceManager:
        """Return the supervisor as the service manager of this process."""
        return ServiceManager(self.channel.send, self.watchdog_seconds)
