"""Units on sessions, their leases, and their addresses."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from market.bandwidth import lease_transactions
from market.bandwidth.lease_book import Ask
from market.base.states import SessionStatus
from market.money.ledger import TransferIds
from tests.sim.stepped.side import Action, Side
from tests.sim.stepped.world import CLIENT, MB


async def _opens(name: str, side: Side) -> Any:
    grant = await side.market.leases.open(side.session(name))
    return grant and (grant.status, grant.granted_bytes)


async def _exchanges(name: str, used: int, want: int | None, side: Side) -> Any:
    usage = side.world.usage(name, side.label, used)
    ask = Ask(usage) if want is None else Ask(usage, want_bytes=want)
    return await side.market.leases.exchange([ask])


async def _releases(side: Side) -> Any:
    return await side.market.leases.release([side.world.usage("plain", side.label, 60_000)])


async def settles(name: str, status: SessionStatus, side: Side) -> Any:
    return await side.market.leases.settle(side.session(name), status, None)


async def _settles_with_report(side: Side) -> Any:
    usage = side.world.usage("plain", side.label, 70_000)
    return await side.market.leases.settle(side.session("plain"), SessionStatus.ENDED, usage)


async def _settles_or_recalls(side: Side) -> Any:
    context = side.market.context
    new = context.identifiers.new
    return await side.market.store.write(
        lease_transactions.settle_or_recall,
        context,
        side.session("plain"),
        SessionStatus.ENDED,
        None,
        node_id=side.market.leases.node_id or "",
        transfer_ids=TransferIds(new(), new()),
        earning_id=new(),
        now=context.now(),
    )


async def _forgoes(side: Side) -> Any:
    lease_id = side.world.leases["plain", side.label]
    return await side.market.store.write(
        lease_transactions.forgo, side.session("plain"), lease_id, now=side.market.clock.now
    )


async def _reaps(side: Side) -> Any:
    assert side.world.dead is not None
    return await side.market.leases.reap([side.world.dead])


async def buys(side: Side) -> Any:
    await side.market.bandwidth.buy(side.buyer, quota_bytes=MB, price_per_gb=None)


async def _buys_once(side: Side) -> Any:
    await side.market.bandwidth.buy(
        side.buyer,
        quota_bytes=MB,
        price_per_gb=None,
        allow_ips=["198.51.100.9"],
        receipt=side.receipt(side.buyer),
    )


SESSIONS: Mapping[str, Action] = {
    "opens an idle session": partial(_opens, "idle"),
    "opens a session that it has forgotten": partial(_opens, "plain"),
    "reports": partial(_exchanges, "plain", 50_000, None),
    "asks for more": partial(_exchanges, "plain", 50_000, 4 * MB),
    "reports the last byte": partial(_exchanges, "spent", 180_000, MB),
    "releases": _releases,
    "forgoes": _forgoes,
    "ends a session": partial(settles, "plain", SessionStatus.ENDED),
    "ends a session with a last report": _settles_with_report,
    "ends the idle session": partial(settles, "idle", SessionStatus.EXPIRED),
    "leaves": lambda side: side.market.leases.leave(),
    "reaps a node": _reaps,
    "recovers": lambda side: side.market.leases.recover(),
    "proves an address": lambda side: side.market.leases.prove([(side.session("pending"), CLIENT)]),
    "allows an address": lambda side: side.market.bandwidth.allow(
        side.buyer, side.session("pending"), CLIENT
    ),
    "ends a session with addresses": partial(settles, "pending", SessionStatus.ENDED),
    "buys a session": buys,
    "buys a session once": _buys_once,
    "ends a session, or recalls it": _settles_or_recalls,
}
