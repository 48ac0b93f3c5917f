"""Jobs with a specification of their own, and devices that ask for them, without a network."""

from typing import Any

from msgspec import structs
from msgspec.structs import replace

from market.dispatch.asks import Agent, Ask, Told
from market.jobs.matching import MILLION, Offer
from market.jobs.specs import Spec
from market.money.money import MICRO
from proxyctl.protocol.jobspec import Capacity, payload_of, resources_of
from storage.devices.devices import DeviceRow
from support.market.jobs import wanted
from support.market.market import Market

SCRIPT = {"script": "print('hello')"}
SMALL = Capacity(slots=1, cores=4, ram_gb=8, disk_gb=50, arch="x86_64")
BWRAP = frozenset(("bwrap",))
EVERYTHING = frozenset(("docker", "training", "inference", "script"))


async def posted(
    market: Market,
    buyer: str,
    *,
    payload: dict[str, Any] | None = None,
    resources: dict[str, Any] | None = None,
    is_manual: bool = False,
    min_reputation: int = 0,
    **changes: Any,
) -> str:
    """Put up a job that any device may get which suits; for a credit an hour but for changes."""
    spec = Spec(
        payload_of(SCRIPT if payload is None else payload),
        resources_of(resources or {}),
        is_manual=is_manual,
        timeout_seconds=3_600,
        min_reputation=min_reputation,
    )
    job = wanted(**{"job_type": "script", "price": MICRO, "duration_hrs": 1, **changes})
    return await market.jobs.create(buyer, replace(job, spec=spec))


def offer(capacity: Capacity = SMALL, *, least_usd: int = 0, **changes: Any) -> Offer:
    """Return the offer of a device that has bubblewrap; `least_usd` in micro-USD per hour."""
    made = Offer(capacity, BWRAP, EVERYTHING, least_price=least_usd * MILLION, ports=BWRAP)
    return structs.replace(made, **changes)


def ask(
    offered: Offer | None = None,
    *held: tuple[str, int],
    wait_seconds: float = 0.0,
    seen: int = 0,
    agent: Agent | None = None,
) -> Ask:
    """Return the request of a device."""
    return Ask(offered or offer(), frozenset(held), wait_seconds, seen, agent or Agent())


async def given(market: Market, device: DeviceRow, asked: Ask | None = None) -> list[str]:
    """Send a device's request for work, and return the jobs that it gets."""
    told = await market.dispatch.next(device, asked or ask())
    return [job.row.job_id for job in told.jobs]


def attempts_of(told: Told) -> set[tuple[str, int]]:
    """Return the attempts of an answer."""
    return {(job.row.job_id, job.row.attempt) for job in told.jobs}
