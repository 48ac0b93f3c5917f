"""Work connections that come under TLS: each is joined to a pair of sockets, and waits."""

import logging
import socket
from collections.abc import Iterator
from typing import Protocol, final

from proxyctl.protocol.frames import Preface, Tunnel
from proxyd.exits.attached.control import AGAIN_SECONDS, Control
from proxyd.exits.attached.pool import Pool
from proxyd.exits.attached.roster import Roster
from proxyd.exits.attached.secure import Seal, make_pair
from proxyd.exits.attached.work import Work
from proxyd.loop.poller import Poller

_logger = logging.getLogger("exits")


class Workers(Protocol):
    """Devices that are attached as workers: see `tunnels.py`."""

    async def welcome(self, control: Control, hello: Tunnel) -> None:
        """Attach a worker after its hello, or refuse it."""

    def admit(self, control: Control, preface: Preface, rest: bytes) -> None:
        """Take a work connection over with the bytes behind its preface, or cut it."""

    def recheck(self, device_id: str) -> None:
        """Check again whether a device may be attached."""

    def drain(self, seconds: float) -> None:
        """Notify every worker that the daemon stops."""

    def close(self) -> None:
        """Release every device, with its streams. Idempotent."""

    async def wait_closed(self) -> None:
        """Wait until no task runs any more."""


@final
class Seals:
    """Takes work connections under TLS, of an exit or of a worker.

    Args:
        workers: the devices that are attached as workers; None where there are none.
    """

    def __init__(self, poller: Poller, roster: Roster, workers: Workers | None, work: Work) -> None:
        self._poller = poller
        self._roster = roster
        self._workers = workers
        self._work = work
        self._seals: set[Seal] = set()

    def __len__(self) -> int:
        return len(self._seals)

    def __iter__(self) -> Iterator[Seal]:
        return iter(self._seals)

    def close(self) -> None:
        """Cut every connection."""
        for seal in tuple(self._seals):
            seal.abort()

    def tunnel(self, control: Control, hello: Tunnel) -> None:
        """Attach a worker, or refuse it."""
        if self._workers is None:
            control.refuse("tunnels_off", "The service opens no streams into jobs.", AGAIN_SECONDS)
        else:
            self._work.spawn(self._workers.welcome(control, hello))

    def admit(self, control: Control, preface: Preface, rest: bytes) -> None:
        """Put a work connection with a valid ticket into its pool; reject any other."""
        attached, _ = self._roster.by_number.get(preface.attachment, (None, None))
        if attached is None and self._workers is not None:
            self._workers.admit(control, preface, rest)
            return
        pool = attached.secure if attached is not None else None
        if pool is None or not pool.tickets.admits(preface.number, preface.ticket):
            control.cut("ticket")
            return
        if rest:  # an exit says nothing before it has a target
            control.cut("violation")
            return
        if self._work.is_stopping:
            control.cut("stopping")
            return
        self._join(control, pool, preface.number)

    def _join(self, control: Control, pool: Pool, number: int) -> None:
        """Join a connection to a pair of sockets; one of them waits from then on."""
        transport = control.hand_over()
        try:
            sock, other = make_pair()
        except OSError as error:
            _logger.warning("a connection of an exit is closed: %s", error)
            transport.abort()
            return
        seal = Seal(transport, other, self._poller, self._seals.discard)
        self._seals.add(seal)

        def close_pair() -> None:
            sock.close()
            other.close()

        self._work.run(self._park(pool, number, sock, seal), close_pair)

    async def _park(self, pool: Pool, number: int, sock: socket.SocketType, seal: Seal) -> None:
        """Park the socket that stands for a connection under TLS."""
        try:
            await seal.start()
            pool.park(number, sock)
        except OSError:
            sock.close()
            seal.abort()
            self._seals.discard(seal)
        except BaseException:
            sock.close()
            seal.abort()
            raise
