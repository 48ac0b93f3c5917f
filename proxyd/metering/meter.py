"""The meter: the live sessions for the rest of the daemon and the marketplace.

It joins the parts, and runs the one loop that writes to the store. `Sessions` holds the known
sessions, `Admission` admits clients, a `Writer` reports counts, `Settler` settles used-up sessions,
`AddressProofs` holds the proved client addresses.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

from market.accounts.levels import NewAccounts
from market.bandwidth.leases import Leases, Usage
from market.base.states import SessionStatus
from proxyd.metering.address_proofs import AddressProofs
from proxyd.metering.admission import Admission, Admitter, Decide
from proxyd.metering.cluster_writer import USUAL as CLUSTER
from proxyd.metering.cluster_writer import ClusterTimes, ClusterWriter
from proxyd.metering.fence import Fence
from proxyd.metering.halting import Halting
from proxyd.metering.session import LiveSession
from proxyd.metering.sessions import USUAL as MEMORY
from proxyd.metering.sessions import MemoryBounds, Sessions
from proxyd.metering.settling import Settler
from proxyd.metering.single_flight import USUAL as UNKNOWN
from proxyd.metering.single_flight import NegativeBounds
from proxyd.metering.tallies import USUAL as TALLIES
from proxyd.metering.tallies import Tallies, TallyBounds
from proxyd.metering.writer import FLUSH_SECONDS, SoloWriter, Writer
from proxyd.wire.events import Refusal
from storage.engines.errors import StoreError, level_of

_logger = logging.getLogger("meter")


@dataclass(frozen=True, slots=True)
class MeterBounds:
    """The bounds of the parts of a meter."""

    memory: MemoryBounds = MEMORY
    tallies: TallyBounds = TALLIES
    unknown: NegativeBounds = UNKNOWN
    cluster: ClusterTimes = CLUSTER


USUAL: Final = MeterBounds()


def solo_meter(
    leases: Leases,
    now: Callable[[], int],
    *,
    connections_per_session: int,
    bytes_per_second: int = 0,
    forgotten: Callable[[str], None] | None = None,
    bounds: MeterBounds = USUAL,
) -> "Meter":
    """Return the meter of a daemon that is alone on its database.

    Args:
        leases: grants bytes, and takes the counts.
        now: the wall clock, in UTC seconds.
        connections_per_session: the limit of open connections.
        bytes_per_second: the limit of a session's speed; 0 for none.
        forgotten: called with each session that is not known here any more.
        bounds: the bounds of its parts.
    """
    sessions, tallies = Sessions(forgotten, bounds.memory), Tallies(bounds.tallies)
    wake = asyncio.Event()
    settler = Settler(leases, sessions, wake)
    writer = SoloWriter(leases, sessions, settler, tallies, wake)
    admission = Admission(
        leases,
        sessions,
        writer,
        tallies,
        now,
        connections_per_session=connections_per_session,
        bytes_per_second=bytes_per_second,
        bounds=bounds.unknown,
    )
    return Meter(leases, sessions, admission, writer, settler, tallies, wake)


def cluster_meter(
    leases: Leases,
    now: Callable[[], int],
    fence: Fence,
    *,
    connections_per_session: int,
    bytes_per_second: int = 0,
    forgotten: Callable[[str], None] | None = None,
    bounds: MeterBounds = USUAL,
) -> tuple["Meter", ClusterWriter]:
    """Return the meter of one node among several, and its writer, which receives their notices.

    Args:
        leases: as for `solo_meter`.
        now: the same.
        fence: until when bytes may be handed out.
        connections_per_session: the most open connections of a session on this node.
        bytes_per_second: the limit of a session's speed on this node; 0 for none.
        forgotten: as for `solo_meter`.
        bounds: the same.
    """
    sessions, tallies = Sessions(forgotten, bounds.memory), Tallies(bounds.tallies)
    wake = asyncio.Event()
    settler = Settler(leases, sessions, wake)
    writer = ClusterWriter(leases, sessions, settler, tallies, fence, wake, bounds.cluster)
    admission = Admission(
        leases,
        sessions,
        writer,
        tallies,
        now,
        connections_per_session=connections_per_session,
        bytes_per_second=bytes_per_second,
        bounds=bounds.unknown,
    )
    return Meter(leases, sessions, admission, writer, settler, tallies, wake), writer


@final
class Meter(Admitter):
    """The meter; see above. It implements `market.bandwidth.sessions.Traffic` for the marketplace.

    Args:
        tallies: counts begun and refused connections; the gateway counts there.
        wake: set when there is something to write before the writer's pause is over.
    """

    def __init__(
        self,
        leases: Leases,
        sessions: Sessions,
        admission: Admission,
        writer: Writer,
        settler: Settler,
        tallies: Tallies,
        wake: asyncio.Event,
    ) -> None:
        self.sessions = sessions
        self.tallies = tallies
        self._leases = leases
        self._admission = admission
        self._writer = writer
        self._settler = settler
        self._proofs = AddressProofs(leases, sessions, admission.allowlist, wake)
        self._wake = wake
        self._store_failing = False

    # --- for the gateway -----------------------------------------------------------------------

    @property
    def connections_per_session(self) -> int:
        """Limit of open connections of a session."""
        return self._admission.connections_per_session

    @connections_per_session.setter
    def connections_per_session(self, most: int) -> None:
        self._admission.connections_per_session = most

    @property
    def new_accounts(self) -> NewAccounts:
        """Limits of new accounts, for sessions that are leased from now on."""
        return self._leases.new_accounts

    @new_accounts.setter
    def new_accounts(self, limits: NewAccounts) -> None:
        self._leases.new_accounts = limits

    def admit(
        self, username: bytes, password: bytes, asker: str, decide: Decide
    ) -> LiveSession | Refusal | None:
        """See `Admission.admit`."""
        return self._admission.admit(username, password, asker, decide)

    def admit_address(
        self, port_index: int, address: str, asker: str, decide: Decide
    ) -> LiveSession | Refusal | None:
        """See `Admission.admit_address`."""
        return self._admission.admit_address(port_index, address, asker, decide)

    def prove(self, session: LiveSession, address: str) -> None:
        """See `AddressProofs.add`."""
        self._proofs.add(session, address)

    # --- for the marketplace: market.bandwidth.sessions.Traffic ----------------------------------

    def used_bytes(self, session_id: str, lease_id: str) -> int | None:
        """See `Traffic.used_bytes`."""
        session = self.sessions.get(session_id)
        return session.used if session is not None and session.lease_id == lease_id else None

    def cut(self, session_id: str, status: SessionStatus) -> Usage | None:
        """See `Traffic.cut`."""
        return self.sessions.cut(session_id, status)

    def restore(self, session_id: str) -> None:
        """See `Traffic.restore`."""
        session = self.sessions.restore(session_id)
        if session is not None:
            self._writer.restored(session)

    def granted(self, port_index: int, addresses: Sequence[str]) -> None:
        """See `Traffic.granted`."""
        self._admission.allowlist.granted(port_index, addresses)

    async def settle_exhausted(self) -> None:
        """See `Traffic.settle_exhausted`."""
        with suppress(StoreError):  # `run` tries again, and logs it
            await self._settler.settle()

    @property
    def halting(self) -> Halting:
        """The part that carries out the orders of the staff."""
        return self._writer.halting

    # --- writing down --------------------------------------------------------------------------

    @property
    def live(self) -> int:
        """The number of sessions that are known here and can be used."""
        return self.sessions.live

    async def run(self) -> None:
        """Store counts until cancelled; failures of the store delay them but lose none."""
        while True:
            try:
                async with asyncio.timeout(self._writer.pause()):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self.flush()
            self.sessions.forget_old(kept=self._settler)
            if self._store_failing:
                await asyncio.sleep(FLUSH_SECONDS)

    async def flush(self) -> None:
        """Store changed counts, settle used-up sessions, close leases with an unknown commit."""
        try:
            await self._writer.flush()
            await self._proofs.flush()
            await self._leases.forgo_unsure()
        except StoreError as error:
            if not self._store_failing:
                _logger.log(
                    level_of(error, logging.ERROR),
                    "byte counts wait in memory until the database is back: %s",
                    error,
                )
            self._store_failing = True
        else:
            if self._store_failing:
                _logger.info("the store is back, counts are written")
            self._store_failing = False

    async def stop(self) -> None:
        """Store the last counts, and release every lease.

        Raises:
            StoreError: unwritten counts are lost, as after a crash.
        """
        await self._admission.stop()
        await self._writer.stop()
        while tallies := self.tallies.take():
            await self._leases.report([], tallies)
