"""Proofs of client addresses: a client with a session's password came from the address.

A session may be bought for addresses that are not the buyer's. Such an address is pending and opens
nothing until a client comes from it with the password; from then on it needs none.
"""

import asyncio
from typing import final

from market.bandwidth.leases import Leases
from proxyd.metering.allowlist import Allowlist
from proxyd.metering.session import LiveSession
from proxyd.metering.sessions import Sessions

# Another session has the address, for as long as that lasts: asking is a write each time.
PROVE_AGAIN_SECONDS = 60.0


@final
class AddressProofs:
    """The proved addresses that are not stored yet.

    Args:
        sessions: the known sessions, with the addresses that are pending.
        wake: set when there is something to write.
    """

    def __init__(
        self, leases: Leases, sessions: Sessions, allowlist: Allowlist, wake: asyncio.Event
    ) -> None:
        self._leases = leases
        self._sessions = sessions
        self._allowlist = allowlist
        self._wake = wake
        self._due: set[tuple[str, str]] = set()

    def add(self, session: LiveSession, address: str) -> None:
        """Note the address of a client that has shown a session's password."""
        pending = self._sessions.pending.get(session.id)
        if pending is None:
            return
        due = pending.get(address)
        if due is not None and due <= asyncio.get_running_loop().time():
            self._due.add((session.id, address))
            self._wake.set()

    async def flush(self) -> None:
        """Store the proved addresses; retry a failed write after a while.

        Raises:
            UnavailableError: the store did not answer; the next call tries again.
        """
        proofs = tuple(self._due)
        if not proofs:
            return
        self._due.clear()
        try:
            port_indexes = await self._leases.prove(proofs)
        except BaseException:
            self._due.update(proofs)
            raise
        for (session_id, address), port_index in zip(proofs, port_indexes, strict=True):
            session = self._sessions.get(session_id)
            pending = self._sessions.pending.get(session_id, {})
            if session is None or address not in pending:
                continue
            if port_index is None:
                pending[address] = asyncio.get_running_loop().time() + PROVE_AGAIN_SECONDS
            else:
                del pending[address]
                self._sessions.learn((port_index, address), session)
                self._allowlist.granted(port_index, [address])
