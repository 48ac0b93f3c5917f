"""The units of work on leases: each is one transaction, which locks its sessions first."""

from collections.abc import Mapping, Sequence

from market.accounts.levels import NewAccounts, has_used_its_day, limited
from market.bandwidth.allowlist import prove
from market.bandwidth.lease_book import (
    SLICE_FIRST_BYTES,
    Ask,
    Book,
    Grant,
    LeaseReply,
    Tally,
    Usage,
    slice_of,
)
from market.bandwidth.notices import Notice, Topic
from market.base.errors import MarketError
from market.base.states import SessionStatus
from market.events.catalogue import (
    EventData,
    SessionEnded,
    SessionExhausted,
    SessionExpired,
    SessionExpiring,
    SessionLow,
    amount,
    timestamp,
)
from market.events.context import Context
from market.events.recording import NewEvent, record, record_all
from market.exits import earnings as exit_earnings
from market.money import debts, ledger
from market.money.ledger import Movement, Payment, TransferIds
from market.money.money import Currency, earned
from storage.bandwidth import allowlist, halts, nodes
from storage.bandwidth import sessions as queries
from storage.bandwidth import usage as usage_queries
from storage.bandwidth.nodes import SeenRow
from storage.bandwidth.sessions import LeaseRow, SessionRow
from storage.bandwidth.usage import CountsRow, RefusalRow
from storage.engines.errors import UnavailableError
from storage.engines.store import Transaction
from storage.exits import exits as exit_queries
from storage.money import ledger as ledger_queries

DAY_SECONDS = 86_400
# Time before the expiry of a session at which its buyer is notified.
WARNED_SECONDS = DAY_SECONDS
TOLD_MAX_SESSIONS = 500  # notified in one transaction of the sweep


def hold_of(session_id: str) -> str:
    """Return the hold that pays for a session."""
    return f"bandwidth:{session_id}"


async def prove_all(tx: Transaction, proofs: Sequence[tuple[str, str]]) -> list[int | None]:
    """Open sessions to pending addresses; see `Leases.prove`."""
    await queries.lock(tx, [session_id for session_id, _ in proofs])
    port_indexes: list[int | None] = []
    for session_id, address in proofs:
        try:
            port_indexes.append((await prove(tx, session_id, address)).port_index)
        except MarketError:
            port_indexes.append(None)
    return port_indexes


async def forgo(tx: Transaction, session_id: str, lease_id: str, *, now: int) -> None:
    """Close an unused lease, if it was opened at all."""
    await queries.lock(tx, [session_id])
    await _close(tx, [lease for lease, _ in await queries.leases_with_counts(tx, [lease_id])], now)


async def forgo_own(tx: Transaction, session_id: str, node_id: str, *, now: int) -> None:
    """Close a node's open lease of a session that the node itself does not know.

    A database that lost committed changes has such leases: the node released them since.
    """
    await queries.lock(tx, [session_id])
    own = await nodes.leases(tx, node_id)
    await _close(tx, [lease for lease in own if lease.session_id == session_id], now)


async def open_lease(
    tx: Transaction,
    session_id: str,
    *,
    lease_id: str,
    node_id: str | None,
    now: int,
    new_accounts: NewAccounts,
) -> Grant | None:
    """Lease a session: all of its remainder for the one daemon, a slice for a node.

    A halted session is not leased, and looks like one that is over; so does a session of a new
    account that has used the bytes of its day.
    """
    await queries.lock(tx, [session_id])
    session = await queries.find(tx, session_id)
    if session is None:
        return None
    status = SessionStatus(session.status)
    if status is SessionStatus.ACTIVE and session.expires_at <= now:
        status = SessionStatus.EXPIRED
    if status is SessionStatus.ACTIVE and await halts.is_halted(tx, session_id):
        status = SessionStatus.ENDED  # for this client; the session itself stays active
    limits = await limited(tx, session.user_id, new_accounts, now)
    if limits is not None and await has_used_its_day(tx, session.user_id, limits, now):
        status = SessionStatus.ENDED if status is SessionStatus.ACTIVE else status
    leased = status is SessionStatus.ACTIVE
    size = session.quota_bytes - session.bytes_used - session.bytes_leased
    if node_id is not None:
        size = slice_of(size, SLICE_FIRST_BYTES)
    if leased and not await queries.lease(tx, session, lease_id, size, node_id):
        raise UnavailableError("the session changed while it was leased")
    opened = await allowlist.of_session(tx, session_id) if leased else []
    pending = await allowlist.pending_of_session(tx, session_id) if leased else []
    return Grant(
        session_id=session.id,
        username=session.username,
        password_hash=session.password_hash,
        status=status,
        expires_at=session.expires_at,
        lease_id=lease_id if leased else None,
        granted_bytes=size if leased else 0,
        entries=tuple((row.port_index, row.address) for row in opened),
        pending=tuple(row.address for row in pending),
        user_id=session.user_id,
        price_per_gb=session.price_per_gb,
        exit=session.exit,
        limited=limits,
    )


async def exchange(
    tx: Transaction,
    context: Context,
    asks: Sequence[Ask],
    *,
    node_id: str,
    now: int,
    tallies: Sequence[Tally] = (),
) -> list[LeaseReply]:
    """Process reports, and change the granted bytes; see `Leases.exchange`."""
    sessions = [ask.usage.session_id for ask in asks]
    await queries.lock(tx, [*sessions, *(tally.session_id for tally in tallies)])
    rows = await queries.leases_with_counts(tx, [ask.usage.lease_id for ask in asks])
    pairs = [(ask.usage.lease_id, device_id) for ask in asks for device_id, _ in ask.usage.exits]
    book = Book(rows, await exit_queries.use_of(tx, pairs) if pairs else ())
    replies = [book.reply(ask) for ask in asks]
    await queries.change(tx, list(book.leases.values()), book.sessions)
    await _write_usage(tx, book.moved(), tallies, now)
    await _tell_low(tx, context, book.nearly_used_up())
    if book.uses:  # after the leases' own counts, which bound those of exits
        days = book.days(now // DAY_SECONDS)
        await exit_queries.write_use(tx, list(book.uses.values()), days)
    if book.wanted:
        await tx.notify(
            *(
                Notice(Topic.WANTED, each, SessionStatus.ACTIVE, node_id).text
                for each in book.wanted
            )
        )
    return replies


async def _write_usage(
    tx: Transaction, moved: Mapping[str, int], tallies: Sequence[Tally], now: int
) -> None:
    """Add the new counts of a report to the present hour."""
    begun = {tally.session_id: tally.connections for tally in tallies if tally.connections}
    counts = [
        CountsRow(each, moved.get(each, 0), begun.get(each, 0)) for each in sorted({*moved, *begun})
    ]
    if counts:
        await usage_queries.add(tx, counts, now=now)
    refusals = [RefusalRow(tally.session_id, *each) for tally in tallies for each in tally.refusals]
    if refusals:
        await usage_queries.add_refusals(tx, refusals, now=now)


async def _tell_low(tx: Transaction, context: Context, session_ids: Sequence[str]) -> None:
    """Notify the buyers of sessions with little left, unless they were notified before."""
    if not session_ids:
        return
    low = await queries.mark_low(tx, session_ids)
    events = [
        NewEvent(row.user_id, SessionLow(row.id, row.quota_bytes, row.bytes_left), row.id)
        for row in low
    ]
    await record_all(tx, context, events)


async def tell_expiring(tx: Transaction, context: Context) -> int:
    """Notify buyers of sessions that expire soon. Return the number of examined sessions.

    A session with a lifetime that is hardly longer than the notice causes no event.
    """
    now = context.now()
    rows = await queries.mark_expiring(
        tx, now=now, before=now + WARNED_SECONDS, limit=TOLD_MAX_SESSIONS
    )
    events = [
        NewEvent(
            row.user_id,
            SessionExpiring(row.id, row.bytes_left, timestamp(row.expires_at)),
            row.id,
        )
        for row in rows
        if row.expires_at - row.created_at > 2 * WARNED_SECONDS
    ]
    await record_all(tx, context, events)
    return len(rows)


async def release(tx: Transaction, context: Context, usages: Sequence[Usage], *, now: int) -> None:
    """Process last reports, and close their leases."""
    await exchange(tx, context, [Ask(usage) for usage in usages], node_id="", now=now)
    rows = await queries.leases_with_counts(tx, [usage.lease_id for usage in usages])
    await _close(tx, [lease for lease, _ in rows], now)


async def settle(
    tx: Transaction,
    context: Context,
    session_id: str,
    status: SessionStatus,
    usage: Usage | None,
    *,
    node_id: str | None,
    transfer_ids: TransferIds,
    earning_id: str,
    now: int,
) -> bool:
    """Move a session out of `active`, and capture its price; see `Leases.settle`."""
    SessionStatus.ACTIVE.require_before(status)
    await queries.lock(tx, [session_id])
    if usage is not None:
        await exchange(tx, context, [Ask(usage)], node_id="", now=now)
    await _close(tx, await queries.open_leases(tx, session_id), now)
    if await queries.is_used_up(tx, session_id):
        status = SessionStatus.EXHAUSTED
    session = await queries.change_status(
        tx, session_id, before=SessionStatus.ACTIVE, after=status, now=now
    )
    if session is None:
        return False
    await allowlist.delete(tx, session_id)
    owed = await _capture(
        tx, context, session, transfer_ids=transfer_ids, earning_id=earning_id, now=now
    )
    over = _over(session, status, owed)
    await record(tx, context, session.user_id, over, subject_id=session_id)
    if node_id is not None:
        await tx.notify(Notice(Topic.OVER, session_id, status, node_id).text)
    return True


async def settle_or_recall(
    tx: Transaction,
    context: Context,
    session_id: str,
    status: SessionStatus,
    usage: Usage | None,
    *,
    node_id: str,
    transfer_ids: TransferIds,
    earning_id: str,
    now: int,
) -> bool:
    """Settle a session; if other nodes have leases of it, recall these instead, and return False.

    The lock is that of `open_lease`, so no node can lease the session between the look and the
    settlement.
    """
    await queries.lock(tx, [session_id])
    if await queries.leased_elsewhere(tx, session_id, node_id):
        await tx.notify(Notice(Topic.CUT, session_id, status, node_id).text)
        return False
    await settle(
        tx,
        context,
        session_id,
        status,
        usage,
        node_id=node_id,
        transfer_ids=transfer_ids,
        earning_id=earning_id,
        now=now,
    )
    return True


def _over(session: SessionRow, status: SessionStatus, owed: int) -> EventData:
    """Return the event that reports the end of a session to its buyer."""
    kinds: dict[SessionStatus, type[SessionEnded | SessionExhausted | SessionExpired]] = {
        SessionStatus.ENDED: SessionEnded,
        SessionStatus.EXHAUSTED: SessionExhausted,
        SessionStatus.EXPIRED: SessionExpired,
    }
    return kinds[status](session.id, session.bytes_used, amount(owed))


async def _capture(
    tx: Transaction,
    context: Context,
    session: SessionRow,
    *,
    transfer_ids: TransferIds,
    earning_id: str,
    now: int,
) -> int:
    """Capture the price of a session's use from its hold, release the rest, and return the price.

    The owners of its exits get their earnings that are not posted yet; these are pending from then
    on. The capture pays for all posted earnings, and the house gets the rest. Bytes through barred
    exits are free, except for earnings from them that were paid out before. The released part pays
    the debts of its user first, as a deposit does.

    Raises:
        LookupError: it has no hold; another program has removed it.
    """
    hold_id = hold_of(session.id)
    hold = await ledger_queries.find_hold(tx, hold_id)
    if hold is None:
        raise LookupError(f"the session {session.id} has no hold")
    exits = await exit_queries.earned_of(tx, session.id)
    earnings = [exit_earnings.unposted(each) for each in exits]
    paid_bytes, payable = session.bytes_used, 0
    for each in exits:
        # Reversed bytes stay free, even if the exit is not barred any more.
        paid_bytes -= each.posted_bytes - each.kept_bytes
        payable += each.kept
        if each.is_barred:
            paid_bytes -= each.used_bytes - each.posted_bytes
        else:
            payable += each.amount - each.posted
    owed = earned(paid_bytes, session.price_per_gb)
    if paid_bytes:
        owed = max(owed, 1)  # uses below a millionth would otherwise be free, any number of times
    # A share is a part of the price of used bytes, rounded down like the price. Only where some of
    # an exit's earnings were reversed is each of the others rounded on its own.
    owed = min(max(owed, payable), hold.amount)
    rest = owed - payable
    assert rest >= 0  # noqa: S101 - or the exits would be paid more than the buyer pays
    payments = [
        Payment(ledger.exit_payable(), payable),
        Payment(ledger.revenue(Currency.USD), rest),
    ]
    user_id, usd = session.user_id, Currency.USD
    is_indebted = await debts.owed(tx, user_id) > 0
    if exits or is_indebted:  # all accounts at once, so that two ends cannot deadlock
        of_debts = debts.accounts(user_id) if is_indebted else ()
        resolving = (
            Movement(ledger.held(user_id, usd), ledger.exit_payable(), 1),
            Movement(ledger.available(user_id, usd), ledger.revenue(usd), 1),
        )
        await ledger.lock(tx, [*resolving, *of_debts, *exit_earnings.movements(earnings)])
    resolved = await ledger.capture(tx, hold_id, payments, transfer_ids=transfer_ids, now=now)
    if is_indebted and resolved is not None:
        released = resolved.amount - (resolved.captured or 0)
        new_id = context.identifiers.new
        await debts.pay(tx, user_id, released, cause=hold_id, new_id=new_id, now=now)
    await exit_earnings.record(tx, earnings, hold_id, earning_id, now)
    return owed


async def recover(tx: Transaction, *, is_alone: bool, now: int) -> int:
    """Close the leases without a node; if `is_alone`, also the nodes' leases.

    Return their number.
    """
    closed = 0
    if is_alone:
        for node in await nodes.seen(tx):
            closed += await leave(tx, node.id, now=now)
    leases = await nodes.leases(tx, None)
    await queries.lock(tx, [lease.session_id for lease in leases])
    await _close(tx, leases, now)
    return closed + len(leases)


async def reap(tx: Transaction, node: SeenRow, *, now: int) -> int:
    """Declare a node dead, unless it was seen after all."""
    await nodes.lock(tx, node.id)
    if node not in await nodes.seen(tx):
        return 0
    await leave(tx, node.id, now=now)
    return 1


async def leave(tx: Transaction, node_id: str, *, now: int) -> int:
    """Remove a node, and close its leases with its last reports. Return the number of leases."""
    await nodes.lock(tx, node_id)
    leases = await nodes.leases(tx, node_id)
    await queries.lock(tx, [lease.session_id for lease in leases])
    leases = await nodes.leases(tx, node_id)
    await _close(tx, leases, now)
    await nodes.remove(tx, node_id)
    return len(leases)


async def _close(tx: Transaction, leases: Sequence[LeaseRow], now: int) -> None:
    if leases:
        await queries.close_leases(tx, leases, now)
