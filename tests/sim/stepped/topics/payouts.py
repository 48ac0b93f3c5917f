"""Units that decide about the payouts of one user, who also earns and spends."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from support.market.jobs import wanted
from support.market.market import PAYOUT_METHODS
from support.market.payouts import BANK

from market.money.money import MICRO, Currency
from market.payouts.files import Format, Line, Outcome
from market.payouts.payouts import Request
from market.payouts.providers import Progress, ProviderRounds, Refusal, settle_refusal
from market.payouts.terms import FailReason, MethodKind, RejectReason
from market.staff.base.roles import Machine
from market.staff.money import money, paying
from market.staff.money.approvals import State
from storage.payouts import batches
from storage.payouts import payouts as queries
from tests.sim.stepped.side import Action, Side

ROOT = Machine("root")
LIMITS = dict.fromkeys(Currency, 10**12)


async def _requests(side: Side) -> Any:
    payouts = side.market.payouts
    payouts.terms = replace(payouts.terms, first_wait_seconds=0, a_day=100)
    new = Request(Currency.CREDIT, 500 * MICRO, side.world.payouts["method"])
    earner = side.world.people["earner"]
    await payouts.request(earner, new, receipt=side.receipt(earner))


async def _cancels(side: Side) -> Any:
    row = await side.market.payouts.cancel(
        side.world.people["earner"], side.world.payouts["requested"]
    )
    return row.state


async def _approves(side: Side) -> Any:
    outcome = await paying.approve(
        side.market.context, ROOT, side.world.payouts["requested"], LIMITS
    )
    return outcome.state in (State.DONE, State.DONE_BEFORE)


async def _rejects(side: Side) -> Any:
    row = await paying.reject(
        side.market.context, ROOT, side.world.payouts["approved"], RejectReason.TERMS_BROKEN
    )
    return row.state


async def _exports(side: Side) -> Any:
    done = await paying.export(side.market.context, ROOT, PAYOUT_METHODS, Format.CSV)
    return done.batch.payouts if done.batch else 0


async def _books(outcome: Outcome, side: Side) -> Any:
    row = await side.market.store.read(queries.find, side.world.payouts["sent"])
    assert row is not None
    reason = FailReason.RETURNED if outcome is Outcome.FAILED else None
    [booked] = await paying.book(
        side.market.context, ROOT, [Line(2, row.id, row.net, outcome, reason)], LIMITS
    )
    return booked.is_refused


async def _pays(side: Side) -> Any:
    return await _books(Outcome.PAID, side)


async def _fails(side: Side) -> Any:
    return await _books(Outcome.FAILED, side)


async def _refused(side: Side) -> Any:
    """Divide the batch of a sent payout, as if a provider had refused it."""
    row = await side.market.store.read(queries.find, side.world.payouts["sent"])
    assert row is not None
    assert row.batch_id is not None
    batch = await side.market.store.read(batches.find, row.batch_id)
    assert batch is not None
    refusal = Refusal("", {row.id: FailReason.METHOD_INVALID})
    return await side.market.store.write(settle_refusal, side.market.context, batch, refusal)


class _Service:
    """A payment service that pays to bank accounts, and is not called."""

    name = "paypal"
    kind = MethodKind.BANK
    batch_max = 500
    remembers_seconds = 1

    async def send(self, batch_id: str, orders: object) -> str:
        raise NotImplementedError

    async def look(self, outside_id: str) -> Mapping[str, Progress]:
        raise NotImplementedError

    async def close(self) -> None:
        """Hold no connection."""


async def _gathers(side: Side) -> Any:
    rounds = ProviderRounds(side.market.context, PAYOUT_METHODS, _Service())
    await side.market.store.write(rounds._gather)


async def _spends(side: Side) -> Any:
    await side.market.jobs.create(side.world.people["earner"], wanted(price=600 * MICRO))


async def _adds_method(side: Side) -> Any:
    await side.market.payouts.add_method(side.world.people["earner"], MethodKind.BANK, BANK)


async def _removes_method(side: Side) -> Any:
    await side.market.payouts.remove_method(
        side.world.people["earner"], side.world.payouts["other method"]
    )


async def _returns(side: Side) -> Any:
    return (await _books(Outcome.PAID, side), await _books(Outcome.FAILED, side))


async def _takes_back(side: Side) -> Any:
    outcome = await money.correct(
        side.market.context,
        ROOT,
        side.world.people["earner"],
        LIMITS,
        amount=-5_000 * MICRO,
        currency=Currency.CREDIT,
        reference=f"back-{side.label}",
        why="a copied result",
        leaves_debt=True,
    )
    return outcome.state


async def _collects(side: Side) -> Any:
    earner, collect = side.world.people["earner"], side.market.debt_sweeper._collect
    await side.market.store.write(collect, earner, Currency.CREDIT)


PAYOUTS: Mapping[str, Action] = {
    "requests a payout": _requests,
    "spends earned money": _spends,
    "cancels a payout": _cancels,
    "approves a payout": _approves,
    "rejects an approved payout": _rejects,
    "exports payouts": _exports,
    "books an arrival": _pays,
    "books a failure": _fails,
    "has a batch refused": _refused,
    "sends payouts to a service": _gathers,
    "adds a payout method": _adds_method,
    "removes a payout method": _removes_method,
    "returns a paid payout": _returns,
    "takes earnings back": _takes_back,
    "collects a debt of earnings": _collects,
}
