"""Jobs of a marketplace without a network: creation, acceptance, and their attempts."""

import json
from typing import Any, NamedTuple

from market.attempts.attempts import PROVEN_JOBS
from market.base.errors import Code, MarketError
from market.jobs.postings import NewJob
from market.money.money import MICRO
from market.trust.reputation import WHOLE
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.trust import trust as trust_queries
from storage.trust.trust import ReputationRow
from support.market.market import Market


class Attempt(NamedTuple):
    """A row of `job_attempts`."""

    attempt: int
    device_id: str
    started_at: int
    ended_at: int | None
    outcome: str | None


def wanted(**changes: Any) -> NewJob:
    """Return a new job, for 10 credits and in two hours but for the changes."""
    fields = {
        "title": "train",
        "job_type": "training",
        "price": 10 * MICRO,
        "duration_hrs": 2,
        "description": "",
        "requirements": "",
    }
    return NewJob(**{**fields, **changes})


async def device_of(market: Market, user: str) -> DeviceRow:
    """Register a device of a user."""
    token = await market.devices.create(user, name="rig", device_type="desktop", min_price_usd=None)
    return await market.devices.authenticate(token.token)


async def history(market: Market, job_id: str) -> list[Attempt]:
    """Return every attempt at a job, the first one first."""

    async def read(tx: Transaction) -> list[Attempt]:
        return await tx.all(
            Attempt,
            """
            SELECT attempt, device_id, started_at, ended_at, outcome FROM job_attempts
            WHERE job_id = :job_id ORDER BY attempt
            """,
            job_id=job_id,
        )

    return await market.store.read(read)


async def running(market: Market, buyer: str, worker: str, **changes: Any) -> tuple[str, DeviceRow]:
    """Put a job up, and let a new device of `worker` accept it and begin the work."""
    job_id = await market.jobs.create(buyer, wanted(**changes))
    return job_id, await on(market, job_id, worker)


async def prove(market: Market, *users: str) -> None:
    """Give the devices of these owners completed attempts, so that their failures count."""
    row = ReputationRow("", "owner", WHOLE, WHOLE, PROVEN_JOBS, 0, 0)

    async def add(tx: Transaction) -> None:
        rows = [row._replace(id=user) for user in users]
        await trust_queries.add(tx, rows)
        await trust_queries.write(tx, rows)

    await market.store.write(add)


def code_of(outcome: object) -> Code | None:
    """Return why something was refused, None when it was not."""
    if isinstance(outcome, MarketError):
        return outcome.code
    if isinstance(outcome, BaseException):
        raise outcome
    return None


async def specified(
    market: Market,
    buyer: str,
    *,
    timeout_seconds: int | None = None,
    review_hours: int | None = None,
    payload: dict[str, Any] | None = None,
    **changes: Any,
) -> str:
    """Put a job up with a specification of its own, and return its identifier."""
    job_id = await market.jobs.create(buyer, wanted(**changes))

    async def insert(tx: Transaction) -> None:
        await tx.run(
            """
            INSERT INTO job_specs (job_id, payload, timeout_seconds, review_hours)
            VALUES (:job_id, :payload, :timeout_seconds, :review_hours)
            """,
            job_id=job_id,
            payload=json.dumps({"command": ["true"], **(payload or {})}),
            timeout_seconds=timeout_seconds,
            review_hours=review_hours,
        )

    await market.store.write(insert)
    return job_id


async def on(market: Market, job_id: str, worker: str) -> DeviceRow:
    """Accept a job with a new device of `worker`, and begin the work."""
    device = await device_of(market, worker)
    await market.jobs.accept(device, job_id)
    await market.attempt_reports.started(device, job_id, None)
    return device
