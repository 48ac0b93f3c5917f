"""Slots of owners: the number of jobs that all devices of one owner may hold together.

A token costs nothing, so a limit per device would not limit an owner. An owner begins with few
slots. Every ten attempts that count for the reputation double them, while the reputation is not
lower than at the beginning.
"""

from collections.abc import Collection, Mapping

from market.accounts.bounds import Bounds
from market.attempts.attempts import PROVEN_JOBS
from market.trust.reputation import NEW_RELIABILITY
from storage.dispatch import claims as queries
from storage.engines.store import Transaction
from storage.trust import trust as trust_queries

# Beyond that the slots of the devices bound the owner: a thousand devices with sixteen slots each.
DOUBLINGS_MAX = 10


async def lock(tx: Transaction, device_ids: Collection[str], bounds: Bounds) -> Mapping[str, str]:
    """Lock devices, as every claim does; return the owner of each that has one bound by owner.

    Claims of two devices of one owner must not both take the last slot. So the oldest device of
    each owner is locked with them, in the one order in which devices are locked.
    """
    if not bounds.new_owner_slots:
        await tx.lock("devices", sorted(device_ids))
        return {}
    rows = await queries.owners(tx, device_ids)
    await tx.lock("devices", sorted({*device_ids, *(row.first_id for row in rows)}))
    return {row.device_id: row.user_id for row in rows}


async def left(tx: Transaction, owner_ids: Collection[str], bounds: Bounds) -> dict[str, int]:
    """Return the number of jobs that each owner's devices may still take.

    It is below zero when the bounds were lowered, or for jobs that the transaction itself has
    claimed. The result leaves out owners whose devices cannot hold that number of jobs.
    """
    if not bounds.new_owner_slots:
        return {}
    rows = await trust_queries.find(tx, list(owner_ids))
    most = {}
    for owner_id in owner_ids:
        row = rows.get(owner_id)
        slots = of(row.attempts, row.reliability, bounds) if row else bounds.new_owner_slots
        if not bounds.devices or slots < bounds.devices * (bounds.device_slots or slots):
            most[owner_id] = slots
    if not most:
        return {}
    running = await queries.running_of_owners(tx, sorted(most))
    return {owner_id: slots - running.get(owner_id, 0) for owner_id, slots in most.items()}


def of(attempts: int, reliability: int, bounds: Bounds) -> int:
    """Return the slots of an owner.

    Args:
        attempts: the attempts that have counted for the owner's reputation.
        reliability: the owner's, in millionths.
        bounds: has the slots of a new owner.
    """
    doublings = attempts // PROVEN_JOBS if reliability >= NEW_RELIABILITY else 0
    return bounds.new_owner_slots << min(doublings, DOUBLINGS_MAX)
