"""Leases: bytes of a session that a daemon may hand out, and its reports about them.

Theory of operation
-------------------
A sale puts the price of the whole quota on hold. From there a session's bytes become money in four
steps:

    hold      the buyer's money is set aside (`market.bandwidth.sessions`);
    lease     some of the bytes are granted to one daemon; only it may hand them out (`open`);
    report    the daemon reports the total of the used bytes (`report`, `exchange`);
    capture   the session leaves `active`: the price of the used bytes is paid, and the rest of the
              hold released. The transaction that changes the status does this, so it happens once
              (`settle`).

Each report adds its new bytes to the hour of the report (`storage.bandwidth.usage`). So the hours
of a session add up to its used bytes. Reports that wait for an unavailable store count in the hour
in which it returns.

The database keeps `bytes_used + bytes_leased <= quota_bytes` as a constraint: all leases together
cannot exceed the sold bytes. A report moves bytes from leased to used; nothing else adds to used.

One daemon: it leases the whole remainder of a session, and needs no other lease of it.

Many daemons on PostgreSQL, or processes on SQLite: each is a node, and leases a slice. It requests
more in time, and returns bytes that other nodes need; a notice requests these. A node that ends a
session recalls the slices of the other nodes first (`end`): they cut their connections and report a
last time. The settlement finds the slices that were leased meanwhile, and recalls these too. All
that takes at most `RECALL_SECONDS`; later reports are not billed.

Cost of a dead daemon: the bytes that it delivered and had not reported, up to a second of traffic,
are not billed; the rest of its leases returns to the sessions. The one daemon does that itself at
its next start (`recover`). The other nodes do it for a dead node (`reap`): its process has ended,
or its last sign of life is old enough that it has stopped handing out bytes. A node that stops in
order leaves (`leave`), and loses nothing.

A lost reply costs nothing either: reports are absolute, and a lease with an unconfirmed opening is
closed before the session is leased again (`forgo_unsure`).

The replies and the arithmetic are in `lease_book`, the transactions in `lease_transactions`.

The store decides that a session is used up: when the reports add up to the quota.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from market.accounts.levels import Limited, NewAccounts, limited
from market.bandwidth import lease_transactions
from market.bandwidth.credentials import matches
from market.bandwidth.lease_book import Ask, Grant, LeaseReply, LeaseState, Rejection, Tally, Usage
from market.bandwidth.lease_transactions import hold_of
from market.base.states import SessionStatus
from market.events.context import Context
from market.money.ledger import TransferIds
from storage.bandwidth import allowlist, nodes
from storage.bandwidth import sessions as queries
from storage.bandwidth.nodes import SeenRow
from storage.engines.errors import ConstraintError, UnavailableError

__all__ = [
    "Ask",
    "Grant",
    "LeaseReply",
    "LeaseState",
    "Leases",
    "Rejection",
    "Tally",
    "Usage",
    "hold_of",
]

# Other nodes report in a quarter of a second. A busy node can need longer, and the bytes of a late
# report are not billed. A dead node delays the end of a session by this time. It is shorter than
# the API's wait for requests in progress at a stop; otherwise the session would not be ended then.
RECALL_SECONDS = 4.0
# A fraction of the time of the other nodes, so that hardly any delay is added.
RECALL_STEP_SECONDS = 0.02
# The rule of the schema that a node has one open lease of a session at most.
ONE_OPEN = "bandwidth_leases_open"

KNOWN_AT_ONCE = NewAccounts()

_logger = logging.getLogger("leases")


class Leases:
    """Grants of bytes to the meter, and storage of its reports.

    `node_id` is this daemon among several on the database, None when there is only one.
    `new_accounts` are the limits of new accounts; they may be replaced.
    """

    def __init__(self, context: Context, new_accounts: NewAccounts = KNOWN_AT_ONCE) -> None:
        self.new_accounts = new_accounts
        self._context = context
        self._store = context.store
        self._identifiers = context.identifiers
        self._now = context.now
        self.node_id: str | None = None
        # How many times this node was declared dead.
        self._deaths = 0
        # By session: a lease whose opening failed, but which may be committed.
        self._unsure: dict[str, str] = {}
        # Whether a reaped node may have left sessions that are used up and not settled.
        self._owes_settlements = False

    async def find(self, username: str, password: bytes) -> str | None:
        """Return the session of these credentials, or None.

        Raises:
            UnavailableError: the store did not answer.
        """
        session = await self._store.read(queries.find_by_username, username)
        if session is None or not matches(password, session.password_hash):
            return None
        return session.id

    async def find_by_address(self, port_index: int, address: str) -> str | None:
        """Return the active session that a client's address opens, or None.

        Raises:
            UnavailableError: the store did not answer.
        """
        return await self._store.read(allowlist.find_session, port_index, address)

    async def prove(self, proofs: Sequence[tuple[str, str]]) -> list[int | None]:
        """Open sessions to pending addresses, because a client with the password came from there.

        Args:
            proofs: sessions, and the address that a client of each came from.

        Returns:
            For each the index of the port on which it opens its session; None when it cannot.

        Raises:
            UnavailableError: the store did not answer.
        """
        return await self._store.write(lease_transactions.prove_all, proofs)

    async def open(self, session_id: str) -> Grant | None:
        """Lease bytes of a session; None when there is no such session.

        The one daemon gets the rest of it, which no other may hold then; a node gets a slice.

        Raises:
            UnavailableError: the store did not answer, or the node was declared dead meanwhile.
            ConstraintError: it is leased already.
        """
        unsure = self._unsure.get(session_id)
        if unsure is not None:
            await self._store.write(lease_transactions.forgo, session_id, unsure, now=self._now())
            self._unsure.pop(session_id, None)
        node_id, deaths = self.node_id, self._deaths
        try:
            grant = await self._open(session_id, node_id)
        except ConstraintError as error:
            if error.constraint != ONE_OPEN or node_id is None:
                raise
            _logger.warning("session %s: a forgotten lease of this node is closed", session_id)
            await self._store.write(
                lease_transactions.forgo_own, session_id, node_id, now=self._now()
            )
            grant = await self._open(session_id, node_id)
        if self._deaths != deaths:
            raise UnavailableError("the node was declared dead while it leased")
        return grant

    async def _open(self, session_id: str, node_id: str | None) -> Grant | None:
        lease_id = self._identifiers.new()
        try:
            return await self._store.write(
                lease_transactions.open_lease,
                session_id,
                lease_id=lease_id,
                node_id=node_id,
                now=self._now(),
                new_accounts=self.new_accounts,
            )
        except BaseException as error:
            if not isinstance(error, ConstraintError):  # nothing was written
                self._unsure[session_id] = lease_id
            raise

    async def limited(self, user_id: str) -> Limited | None:
        """Return the limits of a user whose account is new; None for a known one.

        Raises:
            UnavailableError: the store did not answer.
        """
        return await self._store.read(limited, user_id, self.new_accounts, self._now())

    async def forgo_unsure(self) -> None:
        """Close the leases whose opening was not confirmed; no byte was handed out under them.

        Raises:
            UnavailableError: the store did not answer; they stay unsure.
        """
        for session_id, lease_id in tuple(self._unsure.items()):
            await self._store.write(lease_transactions.forgo, session_id, lease_id, now=self._now())
            if self._unsure.get(session_id) == lease_id:  # and not a later one
                del self._unsure[session_id]

    async def report(
        self, usages: Sequence[Usage], tallies: Sequence[Tally] = ()
    ) -> list[LeaseReply]:
        """Store reports of used bytes: an `exchange` without requests."""
        return await self.exchange([Ask(usage) for usage in usages], tallies)

    async def exchange(
        self, asks: Sequence[Ask], tallies: Sequence[Tally] = ()
    ) -> list[LeaseReply]:
        """Store reports and change the granted bytes, in a few statements for any number of leases.

        When nothing is left to lease and other nodes hold some, a notice requests it.

        Args:
            asks: the reports, absolute, with the requests.
            tallies: the outcomes of connections since the last call; each session at most once.
                These are added, perhaps twice if the reply of the store is lost.

        Returns:
            A reply to each: None when the lease is no longer open, `Rejection` when its counts are
            impossible; the others are stored anyway.

        Raises:
            UnavailableError: perhaps written, perhaps not; the next reply says so.
        """
        return await self._store.write(
            lease_transactions.exchange,
            self._context,
            asks,
            node_id=self.node_id or "",
            now=self._now(),
            tallies=tallies,
        )

    async def statuses(self, session_ids: Sequence[str]) -> dict[str, SessionStatus]:
        """Return the states of sessions."""
        statuses = await self._store.read(queries.status_of, session_ids)
        return {session_id: SessionStatus(status) for session_id, status in statuses.items()}

    async def release(self, usages: Sequence[Usage]) -> None:
        """Store the used bytes, and give the rest of each lease back to its session.

        If a report is rejected, the earlier reports stay stored.

        Raises:
            UnavailableError: perhaps written, perhaps not; release again, which is harmless.
        """
        if usages:
            await self._store.write(
                lease_transactions.release, self._context, usages, now=self._now()
            )

    async def end(self, session_id: str, status: SessionStatus, usage: Usage | None) -> None:
        """Settle a session after the last reports of the other nodes.

        A notice requests that these cut the session, report and release it. A node may have leased
        it just before that notice: then the next attempt finds the lease, and recalls it as well.
        The wait takes at most `RECALL_SECONDS` in all. Later reports are not billed.

        Raises:
            UnavailableError: perhaps settled, perhaps not; end it again, which is harmless.
        """
        if self.node_id is not None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + RECALL_SECONDS
            while loop.time() < deadline:
                unit = lease_transactions.settle_or_recall
                if await self._settle(unit, session_id, status, usage):
                    return
                await self._wait_until_released(session_id, self.node_id, deadline)
        await self.settle(session_id, status, usage)

    async def _wait_until_released(self, session_id: str, node_id: str, deadline: float) -> None:
        """Wait until no other node has a lease of a session, at most until a loop time."""
        loop = asyncio.get_running_loop()
        while loop.time() < deadline:
            await asyncio.sleep(RECALL_STEP_SECONDS)
            if not await self._store.read(queries.leased_elsewhere, session_id, node_id):
                return

    async def settle(self, session_id: str, status: SessionStatus, usage: Usage | None) -> bool:
        """Move a session out of `active`: capture the price of its use, release the rest.

        A session without a byte left becomes `exhausted`, for any `status`. Returns False when it
        had left `active` before; then nothing changes.

        Raises:
            UnavailableError: perhaps written, perhaps not; settle again, which is harmless.
        """
        return await self._settle(lease_transactions.settle, session_id, status, usage)

    async def _settle(
        self,
        unit: Callable[..., Coroutine[Any, Any, bool]],
        session_id: str,
        status: SessionStatus,
        usage: Usage | None,
    ) -> bool:
        return await self._store.write(
            unit,
            self._context,
            session_id,
            status,
            usage,
            node_id=self.node_id,
            transfer_ids=TransferIds(self._identifiers.new(), self._identifiers.new()),
            earning_id=self._identifiers.new(),
            now=self._now(),
        )

    async def recover(self) -> int:
        """Close the leases that the one daemon left open when it died. Return their number.

        If this is the one daemon, earlier daemons may have been several; their nodes are dead as
        well. Only reported bytes count as used, so undelivered bytes are not billed. A session that
        was used up and not settled is settled now.
        """
        closed = await self._store.write(
            lease_transactions.recover, is_alone=self.node_id is None, now=self._now()
        )
        await self._settle_used_up()
        return closed

    def declared_dead(self) -> None:
        """Refuse every lease whose opening is under way: the other nodes have taken it back.

        Call it as soon as that is known. The registration under another name takes time, and the
        reply to an opening may arrive meanwhile.
        """
        self._deaths += 1

    async def nodes(self) -> list[SeenRow]:
        """Return every node, as it was seen last."""
        return await self._store.read(nodes.seen)

    async def reap(self, dead: Sequence[SeenRow]) -> int:
        """Close the leases of nodes that are dead and were not seen since, and remove them.

        As in `recover`, their reported bytes count. Returns the number of reaped nodes. A call
        after a failed one settles also without a dead node: the reaped node is gone, and perhaps no
        client of the session comes again.
        """
        reaped = 0
        for node in dead:
            self._owes_settlements = True
            reaped += await self._store.write(lease_transactions.reap, node, now=self._now())
        if self._owes_settlements:
            await self._settle_used_up()
            self._owes_settlements = False
        return reaped

    async def leave(self) -> None:
        """Remove this node from the database; leases that it did not release are closed."""
        if self.node_id is not None:
            await self._store.write(lease_transactions.leave, self.node_id, now=self._now())

    async def _settle_used_up(self) -> None:
        """Settle every session that is used up; log and skip a session that cannot be settled."""
        for session_id in await self._store.read(queries.used_up):
            try:
                await self.settle(session_id, SessionStatus.EXHAUSTED, None)
            except UnavailableError:
                raise
            except Exception:
                _logger.exception("session %s: used up and cannot be settled", session_id)

    async def due_to_expire(self, limit: int) -> list[str]:
        """Return active sessions whose time is over, at most `limit`, the oldest first."""
        return await self._store.read(queries.due_to_expire, now=self._now(), limit=limit)
