"""Copies: the same work done by devices of different owners, so that their results can be compared.

Each copy is a job of its own, with its own hold, attempts, log and files. Its result waits in
review until the results are compared. The comparison happens when more than half of all copies
agree, or when all copies have ended. Copies that agree with the majority are paid for like other
work. The buyer gets the price of the copies that differ back. Without a majority the right result
is unknown. Then each copy is in review like other work: a free disagreement would be a reason for
buyers to cause one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.base.states import CopiesStatus, JobStatus, ReviewStatus
from market.jobs import comparison, reviews
from market.jobs.comparison import Reading, Result, comparison_of
from market.money import ledger
from market.money.money import Currency
from market.trust import trust
from proxyctl.protocol.jobspec import Payload
from storage.dispatch.claims import PairRow
from storage.engines.store import Transaction
from storage.jobs import copies as queries
from storage.jobs.copies import CopyRow, GroupRow, MemberRow, NetworkRow, TakenRow
from storage.jobs.jobs import JobRow

COPIES_MAX = 5
AGREES, DIFFERS = "agrees", "differs"
# A device that has delivered is paid only after the others have delivered. It waits at most this
# long for a copy that no device takes.
UNTAKEN_SECONDS = 3 * 86_400
# It waits at most this long for copies that run, even if the buyer's estimate is longer. Otherwise
# the device with the other copy could delay the first worker's payment for years. A copy that is
# compared after that time is judged, but it has been paid already.
RUNNING_MAX_SECONDS = 7 * 86_400
HOUR_SECONDS = 3_600
OPEN = (JobStatus.WAITING, JobStatus.RUNNING)


class Copying(Struct, frozen=True):
    """The number of devices that do the same work, and the rule to compare their results."""

    copies: int
    compare: str


class Copy(Struct, frozen=True):
    """Copy in the buyer's view; `agrees`: None before the verdict."""

    job_id: str
    status: str
    agrees: bool | None


class Group(Struct, frozen=True):
    """Copies of a job, the rule of their comparison, and the copy that the majority agrees with.

    `taken` lists the owners and networks that have taken a copy; they get no other.
    """

    compare: str
    state: str
    canonical: str | None
    copies: tuple[Copy, ...]
    taken: tuple[TakenRow, ...] = ()


class Compared(Struct, frozen=True):
    """Outcome of the comparison of a group's results.

    Attributes:
        review_until: end of the buyer's review of the copies that are paid for, in UTC seconds.
        reviewed: jobs that are paid for at that time.
        given_back: jobs that differ from the majority, or that failed at work with an agreed
            result; the buyer gets their price back.
        disproved: jobs at which an earlier attempt may have failed, although the work can be done;
            the buyer gets the price of those attempts back.
        unneeded: waiting jobs that are not needed any more.
    """

    review_until: int
    reviewed: Sequence[str] = ()
    given_back: Sequence[str] = ()
    disproved: Sequence[str] = ()
    unneeded: Sequence[str] = ()


def copying_of(copies: int | None, compare: str | None, payload: Payload | None) -> Copying | None:
    """Return the copying of a job as its buyer orders it; None for a job that is done once.

    Raises:
        MarketError: `payload_invalid`, naming the field.
    """
    if copies is None or copies == 1:
        if compare is not None:
            raise _refusal(
                "compare", "There is nothing to compare; set the number of copies, from 2."
            )
        return None
    if not 1 <= copies <= COPIES_MAX:
        raise _refusal("copies", f"It must be from 1 to {COPIES_MAX}.")
    if payload is None:
        raise _refusal("copies", "Only a job with a payload is copied.")
    if payload.ports or payload.restart == "always":
        raise _refusal("copies", "A service has no result that could be compared.")
    try:
        comparison_of(compare or comparison.BYTES)
    except ValueError as error:
        raise _refusal("compare", str(error)) from error
    return Copying(copies, compare or comparison.BYTES)


def _refusal(field: str, message: str) -> MarketError:
    field = f"trust.{field}"
    return MarketError(Code.PAYLOAD_INVALID, f"{field}: {message}", field=field)


async def begin(
    tx: Transaction, copying: Copying, job_ids: Sequence[str], review_seconds: int
) -> None:
    """Make one group of copies from new jobs, which this transaction has posted."""
    assert len(job_ids) == copying.copies  # noqa: S101 - the caller makes this number
    group = GroupRow(
        id=job_ids[0],
        copies=copying.copies,
        compare=copying.compare,
        review_seconds=review_seconds,
        state=CopiesStatus.OPEN,
        canonical_id=None,
        result_at=None,
        decided_at=None,
    )
    await queries.insert(tx, group, job_ids)


async def find(tx: Transaction, job_id: str) -> Group | None:
    """Return the group of a job; None for one that is no copy."""
    group = await queries.find(tx, job_id)
    if group is None:
        return None
    copies = tuple(
        Copy(row.job_id, row.status, None if row.verdict is None else row.verdict == AGREES)
        for row in await queries.copies(tx, group.id)
    )
    taken = tuple(await queries.taken(tx, [group.id]))
    return Group(group.compare, group.state, group.canonical_id, copies, taken)


async def lock_reputations(tx: Transaction, group: GroupRow) -> None:
    """Lock the reputations that a comparison may change; before accounts, and in one order."""
    devices = [row.device_id for row in await queries.copies(tx, group.id) if row.device_id]
    owners = await queries.owners(tx, devices)
    await tx.lock("reputations", sorted({*devices, *(row.user_id for row in owners)}))


async def lock_accounts(tx: Transaction, group: GroupRow, buyer_id: str) -> None:
    """Lock every account that the end of a copy may touch, before the first of them is."""
    currency = Currency.CREDIT
    accounts = {ledger.review(currency), ledger.revenue(currency)}
    for user_id in {buyer_id, *await queries.workers(tx, group.id)}:
        accounts |= {ledger.available(user_id, currency), ledger.held(user_id, currency)}
    await tx.lock("accounts", sorted(accounts))


# --- who may take a copy ---------------------------------------------------------------------


class _Claimed:
    """Owners and networks that have taken copies, and the buyers of the copies."""

    def __init__(self, members: Iterable[MemberRow], rows: Iterable[TakenRow]) -> None:
        self._members = {member.job_id: member for member in members}
        self._rows: dict[str, list[TakenRow]] = {}
        for row in rows:
            self._rows.setdefault(row.group_id, []).append(row)

    def permits(self, job_id: str, owner_id: str, network: str) -> bool:
        """Return whether an owner may take a job: always, unless it is a copy.

        A copy's result has to be independent of the other copies and of the buyer.
        """
        member = self._members.get(job_id)
        if member is None:
            return True
        others = [row for row in self._rows.get(member.group_id, ()) if row.job_id != job_id]
        return owner_id != member.buyer_id and not any(
            owner_id == row.owner_id or (network and network == row.network) for row in others
        )

    def take(self, job_id: str, owner_id: str, network: str) -> None:
        """Record that an owner takes a job."""
        member = self._members.get(job_id)
        if member is not None:
            row = TakenRow(member.group_id, job_id, owner_id, network)
            self._rows.setdefault(member.group_id, []).append(row)


async def lock_pairs(tx: Transaction, pairs: Sequence[PairRow]) -> list[MemberRow]:
    """Lock the jobs of pairs, and every other copy of the copied jobs. Return the copies."""
    copied = [pair.job_id for pair in pairs if pair.group_id]
    members = await queries.members(tx, copied) if copied else []
    ids = {pair.job_id for pair in pairs}.union(member.job_id for member in members)
    await tx.lock("jobs", sorted(ids))
    return members


async def lock_members(tx: Transaction, job_id: str) -> list[MemberRow]:
    """Lock the copies of a job that is one, and return them; none for another job."""
    members = await queries.members(tx, [job_id])
    if members:
        await tx.lock("jobs", sorted(member.job_id for member in members))
    return members


async def independent(
    tx: Transaction, pairs: Sequence[PairRow], members: Sequence[MemberRow]
) -> list[PairRow]:
    """Return the pairs whose device may have the job, because it has none of the other copies.

    Args:
        tx: the transaction, which has locked `members`.
        pairs: jobs and devices; earlier ones come first.
        members: the copies that `lock_pairs` returned.
    """
    if not members:
        return list(pairs)
    claimed = _Claimed(members, await queries.taken(tx, _groups(members)))
    owners = dict(await queries.owners(tx, [pair.device_id for pair in pairs]))
    permitted = []
    for pair in pairs:
        owner = owners[pair.device_id]
        if claimed.permits(pair.job_id, owner, pair.network):
            claimed.take(pair.job_id, owner, pair.network)
            permitted.append(pair)
    return permitted


async def note_networks(tx: Transaction, pairs: Sequence[PairRow], started: Iterable[str]) -> None:
    """Store the networks that took the copies among these pairs whose jobs have begun."""
    begun = frozenset(started)
    rows = [
        NetworkRow(pair.job_id, pair.network)
        for pair in pairs
        if pair.group_id and pair.network and pair.job_id in begun
    ]
    if rows:
        await queries.note_networks(tx, rows)


async def exclusions(
    tx: Transaction, members: Sequence[MemberRow]
) -> Mapping[str, tuple[set[str], set[str]]]:
    """Return each copy's excluded owners and networks."""
    if not members:
        return {}
    rows = await queries.taken(tx, _groups(members))
    excluded: dict[str, tuple[set[str], set[str]]] = {}
    for member in members:
        others = [
            row for row in rows if row.group_id == member.group_id and row.job_id != member.job_id
        ]
        owners = {member.buyer_id, *(row.owner_id for row in others)}
        excluded[member.job_id] = owners, {row.network for row in others if row.network}
    return excluded


def _groups(members: Iterable[MemberRow]) -> list[str]:
    return sorted({member.group_id for member in members})


# --- outcomes of results ---------------------------------------------------------------------


def review_seconds(job: JobRow, group: GroupRow) -> int:
    """Return the longest time in seconds that a copy's result is in review without a comparison.

    This is the time that the other copies may take, within a bound, plus the buyer's review time. A
    worker is paid after this time in any case, even if the comparison is delayed.
    """
    running = min(2 * job.duration_hrs * HOUR_SECONDS, RUNNING_MAX_SECONDS)
    return UNTAKEN_SECONDS + running + group.review_seconds


async def compare(tx: Transaction, group_id: str, *, least_price: int, now: int) -> Compared:
    """Compare the results of a group, if there are enough.

    Call this whenever a copy of the group has ended, while all copies are locked and before any
    account is locked. The verdicts change the reputations of the devices.

    Args:
        tx: the transaction.
        group_id: the group.
        least_price: micro-credits; a copy with a lower price counts as free, and gives no evidence
            about a device.
        now: UTC seconds.
    """
    group = await queries.find(tx, group_id)
    assert group is not None  # noqa: S101 - the caller has locked it
    copies = await queries.copies(tx, group_id)
    done = [copy for copy in copies if copy.status == JobStatus.COMPLETED]
    failed = [copy.job_id for copy in copies if copy.status == JobStatus.FAILED]
    if group.state == CopiesStatus.OPEN:
        is_over = not any(copy.status in OPEN for copy in copies)
        group = await _decided(tx, group, done, now, is_over=is_over)
    review_until = now + group.review_seconds
    if group.state == CopiesStatus.OPEN:
        if done:
            await queries.note_result(tx, group_id, now)
        return Compared(review_until)
    if group.canonical_id is None:
        return Compared(review_until, reviewed=[*(copy.job_id for copy in done), *failed])
    verdicts = await _verdicts(tx, group, group.canonical_id, done)
    for copy in sorted(done, key=lambda each: each.device_id or ""):
        agrees = verdicts.get(copy.job_id)
        if agrees is None:
            continue
        await queries.judge(tx, copy.job_id, AGREES if agrees else DIFFERS)
        if copy.device_id is not None and copy.price_credit >= least_price:
            await trust.compared(tx, copy.device_id, copy.buyer_id, is_right=agrees, now=now)
    return Compared(
        review_until,
        reviewed=[job_id for job_id, agrees in verdicts.items() if agrees],
        # A device that reports failed work is paid for its time, unless another device can do the
        # work. Otherwise a device that cannot do it would report a failure, and earn more than a
        # wrong result pays.
        given_back=[*(job_id for job_id, agrees in verdicts.items() if not agrees), *failed],
        disproved=[copy.job_id for copy in copies],
        unneeded=[copy.job_id for copy in copies if copy.status == JobStatus.WAITING],
    )


async def pay(tx: Transaction, compared: Compared, new_id: Callable[[], str], now: int) -> None:
    """Put the results that agree into review, and refund the price of the others.

    A result that the buyer has confirmed meanwhile is paid already. The accounts are locked
    (`lock_accounts`).
    """
    for job_id in compared.reviewed:
        await reviews.schedule(tx, job_id, compared.review_until)
    decision = reviews.decision(new_id, ReviewStatus.REVERSED, now)
    for job_ids, is_draw in ((compared.given_back, False), (compared.disproved, True)):
        for job_id in job_ids:
            await reviews.give_back(tx, decision, job_id, is_draw=is_draw)


async def _decided(
    tx: Transaction, group: GroupRow, done: Sequence[CopyRow], now: int, *, is_over: bool
) -> GroupRow:
    """Return the state of an open group after the comparison of its results."""
    chosen = None
    if 2 * len(done) > group.copies:
        compared = comparison_of(group.compare)
        read = await _readings(tx, group)
        readings = [read[copy.job_id] for copy in done]
        chosen = comparison.canonical(readings, compared, group.copies)
    if chosen is None and not is_over:
        return group
    state = CopiesStatus.UNDECIDED if chosen is None else CopiesStatus.AGREED
    CopiesStatus(group.state).require_before(state)
    canonical_id = None if chosen is None else done[chosen].job_id
    is_ours = await queries.decide(tx, group.id, state=state, canonical_id=canonical_id, now=now)
    assert is_ours  # noqa: S101 - its copies are locked
    return group._replace(state=state, canonical_id=canonical_id)


async def _verdicts(
    tx: Transaction, group: GroupRow, canonical_id: str, done: Sequence[CopyRow]
) -> dict[str, bool]:
    """Return the verdict on each unjudged finished copy: whether it agrees with the canonical."""
    compared, read = comparison_of(group.compare), await _readings(tx, group)
    return {
        copy.job_id: comparison.agree(read[canonical_id], read[copy.job_id], compared)
        for copy in done
        if copy.verdict is None
    }


async def _readings(tx: Transaction, group: GroupRow) -> dict[str, Reading]:
    """Read the results of a group's finished copies."""
    outputs: dict[str, dict[str, str]] = {}
    for row in await queries.outputs(tx, group.id):
        of_copy = outputs.setdefault(row.job_id, {})
        of_copy.pop(row.name, None)  # was sent anew, and is to be deleted
        if row.digest:
            of_copy[row.name] = row.digest
    compared = comparison_of(group.compare)
    return {
        row.job_id: comparison.read(Result(row.result, outputs.get(row.job_id, {})), compared)
        for row in await queries.results(tx, group.id)
    }
