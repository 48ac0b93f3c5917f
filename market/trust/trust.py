"""Changes of reputations by attempts and checks, in the transaction in which these end.

Each event changes the device's reputation and its owner's, so that a new token begins at the
owner's value. Free jobs do not count, and neither do an owner's own jobs. Events between one buyer
and one owner count a few times a day. So a faked reputation costs fees and time.
"""

from collections.abc import Callable, Mapping, Sequence

from market.attempts.attempts import FailureKind
from market.trust.reputation import NEW, Loss, Reputation, is_good, of_device
from storage.attempts import attempts as attempt_queries
from storage.engines.store import Transaction
from storage.jobs.jobs import JobRow
from storage.trust import trust as queries
from storage.trust.trust import ReputationRow

# Counted jobs of one buyer on one owner's devices, in a day. A person that runs both sides, or
# wants to harm an owner, needs a number of accounts similar to the number of honest ones.
COUNTED_PER_BUYER_DAY = 4
# Good ones of jobs that are paid immediately, without a review: for a person that is both buyer and
# owner they cost only the fees, and no time.
UNREVIEWED_PER_BUYER_DAY = 1
DAY_SECONDS = 86_400


async def ended(
    tx: Transaction,
    job: JobRow,
    outcome: str,
    kind: FailureKind | None,
    *,
    is_reviewed: bool,
    least_price: int,
    now: int,
) -> None:
    """Count an attempt that ends in this transaction.

    Args:
        tx: the transaction; it has locked the job.
        job: the job while it ran; a job without a device does not count.
        outcome: the outcome of the attempt.
        kind: the kind of the failure, as the device reports it.
        is_reviewed: whether the buyer of such a job has time to look at the result.
        least_price: micro-credits; a job with a lower price counts as free, and is ignored.
        now: UTC seconds.
    """
    if job.device_id is None or job.price_credit < least_price:
        return
    has_begun = False
    if kind is FailureKind.REFUSED:
        begun = await attempt_queries.begun(tx, job.id, job.attempts)
        has_begun = begun.work_started_at is not None
    good = is_good(outcome, kind, has_begun=has_begun)
    if good is None:
        return
    owners = await queries.owners(tx, [job.device_id])
    owner_id = owners[job.device_id]
    if owner_id == job.user_id:
        return
    await tx.lock("reputations", sorted((job.device_id, owner_id)))
    counts = await queries.count_buyer(
        tx,
        owner_id=owner_id,
        buyer_id=job.user_id,
        day=now // DAY_SECONDS,
        most=COUNTED_PER_BUYER_DAY if is_reviewed or not good else UNREVIEWED_PER_BUYER_DAY,
    )
    if counts:
        await _change(
            tx, job.device_id, owner_id, lambda before: before.after_attempt(is_good=good)
        )


async def lock(tx: Transaction, device_id: str) -> None:
    """Lock the reputations that the end of an attempt may change, before any account.

    Most attempts are counted before they are paid. A transaction that paid first would hold the
    house's accounts and wait for a reputation, while the holder of that reputation waits for the
    house's accounts.
    """
    owners = await queries.owners(tx, [device_id])
    await tx.lock("reputations", sorted((device_id, owners[device_id])))


async def checked(tx: Transaction, device_id: str, *, is_right: bool) -> dict[str, Loss]:
    """Count a result of a device after its comparison with the right result.

    Return the losses of the device and of its owner by it, by identifier.

    Args:
        tx: the transaction. Where it checks several devices, it takes them in the order of their
            identifiers, and before it locks accounts.
        device_id: the device.
        is_right: whether the result is right.
    """
    owners = await queries.owners(tx, [device_id])
    return await _change(
        tx, device_id, owners[device_id], lambda before: before.after_check(is_right=is_right)
    )


async def give_back(tx: Transaction, losses: Mapping[str, Loss]) -> dict[str, Reputation]:
    """Take a wrong check back. Return the reputations without its loss, by identifier.

    A reputation that was erased meanwhile stays so. No account is locked before this.
    """
    await tx.lock("reputations", sorted(losses))
    after = {}
    rows = await queries.find(tx, [*losses])
    for row in rows.values():
        before = _reputation(row)
        assert before is not None  # noqa: S101 - the row is there
        after[row.id] = before.without(losses[row.id])
    await queries.write(tx, [_row(key, rows[key].kind, each) for key, each in after.items()])
    return after


async def compared(
    tx: Transaction, device_id: str, buyer_id: str, *, is_right: bool, now: int
) -> None:
    """Count the result of a copy like `checked`; count differing results once a day for each buyer.

    A buyer can write work that comes to a different result on one of three devices: it may toss a
    coin, or ask the buyer's own server.
    """
    owner_id = (await queries.owners(tx, [device_id]))[device_id]
    if not is_right:
        await tx.lock("reputations", sorted((device_id, owner_id)))
        day = now // DAY_SECONDS
        if not await queries.count_differing(tx, owner_id=owner_id, buyer_id=buyer_id, day=day):
            return
    await _change(tx, device_id, owner_id, lambda before: before.after_check(is_right=is_right))


async def of_devices(tx: Transaction, device_ids: Sequence[str]) -> dict[str, Reputation]:
    """Return the effective reputation of each of these devices that is known."""
    owners = await queries.owners(tx, device_ids)
    rows = await queries.find(tx, [*owners, *owners.values()])
    return {
        device_id: of_device(_reputation(rows.get(device_id)), _reputation(rows.get(owner_id)))
        for device_id, owner_id in owners.items()
    }


async def _change(
    tx: Transaction, device_id: str, owner_id: str, change: Callable[[Reputation], Reputation]
) -> dict[str, Loss]:
    """Change the reputations of a device and of its owner. Return the loss of each."""
    ids = sorted((device_id, owner_id))
    if len(await queries.find(tx, ids)) < len(ids):
        # A new device begins at its owner's value, which is locked before it is read.
        await queries.add(tx, [_row(owner_id, "owner", NEW)])
        await tx.lock("reputations", [owner_id])
        owner = _reputation((await queries.find(tx, [owner_id]))[owner_id])
        await queries.add(tx, [_row(device_id, "device", of_device(None, owner))])
    # Any transaction may have added the rows just now: a lock of before would have missed them.
    await tx.lock("reputations", ids)
    rows = await queries.find(tx, ids)
    after, losses = [], {}
    for row in rows.values():
        before = _reputation(row)
        assert before is not None  # noqa: S101 - the row is there
        changed = change(before)
        losses[row.id] = before.loss_to(changed)
        after.append(_row(row.id, row.kind, changed))
    await queries.write(tx, after)
    return losses


def _reputation(row: ReputationRow | None) -> Reputation | None:
    return None if row is None else Reputation(*row[2:])


def _row(key: str, kind: str, reputation: Reputation) -> ReputationRow:
    return ReputationRow(
        key,
        kind,
        reputation.reliability,
        reputation.correctness,
        reputation.attempts,
        reputation.checks,
        reputation.streak,
    )
