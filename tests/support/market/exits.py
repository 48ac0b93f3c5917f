"""Devices as exits of a marketplace without a network, and sessions that leave through them."""

from collections.abc import Sequence
from dataclasses import dataclass

from market.bandwidth.leases import LeaseReply, Usage
from market.bandwidth.sessions import Purchase
from market.events.context import Context
from market.exits import payouts
from market.exits.consents import Attached, Coverage, Door, ExitDeviceLimits, Whereabouts
from market.exits.wishes import ExitWishes
from storage.engines.store import Transaction
from storage.exits import exits as exit_queries
from storage.exits.exits import ConsentRow, OriginRow
from support.market.market import Market


@dataclass(frozen=True)
class ExitDevice:
    """A device whose owner has agreed that it is an exit."""

    id: str
    token: str
    owner: str


async def device(market: Market, owner: str) -> ExitDevice:
    """Register a device that is no exit yet."""
    made = await market.devices.create(owner, name="box", device_type="mini_pc", min_price_usd=None)
    return ExitDevice(made.device_id, made.token, owner)


async def exit_device(
    market: Market, owner: str | None = None, limits: ExitDeviceLimits | None = None
) -> ExitDevice:
    """Register a device, of a new owner if none is given, and agree that it is an exit."""
    made = await device(market, owner or await market.person())
    await market.exits.consent(made.owner, made.id, market.exits.terms_hash, limits)
    return made


@dataclass
class Through:
    """A session that is leased, and the reports about it."""

    market: Market
    bought: Purchase
    buyer: str
    lease_id: str

    def usage(self, used: int, exits: Sequence[tuple[ExitDevice, int]] = ()) -> Usage:
        """Return a report: bytes used in all, and of them through exits."""
        counts = tuple((each.id, size) for each, size in exits)
        return Usage(self.bought.session_id, self.lease_id, used, counts)

    async def report(self, used: int, *exits: tuple[ExitDevice, int]) -> LeaseReply:
        """Report, and return the reply."""
        [reply] = await self.market.leases.report([self.usage(used, exits)])
        return reply

    async def end(self) -> None:
        """End the session for its buyer."""
        await self.market.bandwidth.end(self.buyer, self.bought.session_id)


async def through(
    market: Market, *, buyer: str | None = None, quota: int = 10**9, price: int | None = None
) -> Through:
    """Buy a session that leaves through exits, and lease it."""
    who = buyer or await market.person("100")
    bought = await market.bandwidth.buy(
        who, quota_bytes=quota, price_per_gb=price, exit_wishes=ExitWishes()
    )
    grant = await market.lease(bought)
    assert grant is not None
    assert grant.lease_id is not None
    return Through(market, bought, who, grant.lease_id)


class SomeAttached(Attached):
    """Stand-in for the daemon's attached exits, which a test sets."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.places: list[Coverage] = []
        self.places_of: dict[str, OriginRow] = {}
        self.whereabouts: dict[str, Whereabouts] = {}

    def door(self) -> Door | None:
        return Door("exits.example.com", 1090, "ab" * 32)

    def doors(self) -> Sequence[Door]:
        return ()

    def state(self, device_id: str) -> str | None:
        return self.states.get(device_id)

    def attribution(self) -> Sequence[str]:
        return ("Places: somebody",)

    def origins(self) -> Sequence[OriginRow]:
        return list(self.places_of.values())

    def come(self, device_id: str, country: str = "") -> None:
        """Attach a device from a country."""
        self.places_of[device_id] = OriginRow(device_id, country, "", 0)

    def coverage(self) -> Sequence[Coverage]:
        return self.places

    def locate(self, address: str) -> Whereabouts:
        return self.whereabouts.get(address, Whereabouts())

    def remark(self, device_id: str) -> str:
        return ""


async def claw_back(
    context: Context, device_id: str, reason: str, *, reversed_max: int = 200
) -> payouts.ClawedBack:
    """Bar an exit and reverse its unpaid earnings, as the staff does, without a row in the log."""
    now, total = context.now(), payouts.ClawedBack()
    event = ConsentRow(context.identifiers.new(), device_id, "barred", "", reason, now)
    await context.store.write(payouts.bar, event)

    async def step(tx: Transaction) -> payouts.ClawedBack | None:
        rows = await exit_queries.pending_of(tx, device_id, until=now, limit=reversed_max)
        new_id = context.identifiers.new
        ids = [payouts.EarningIds(new_id(), new_id()) for _ in rows]
        return await payouts.reverse(tx, device_id, rows, ids, now=now) if rows else None

    while (part := await context.store.write(step)) is not None:
        total += part
    return total
