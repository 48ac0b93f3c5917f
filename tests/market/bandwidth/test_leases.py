"""Leases: granted bytes never exceed the sold bytes, and only used bytes are billed."""

import asyncio

import pytest
from msgspec.structs import replace
from support.database.statements import counted
from support.market.market import Market

from market.bandwidth.leases import Ask, Grant, Leases, LeaseState, Rejection, Usage
from market.bandwidth.sessions import Purchase
from market.base.states import SessionStatus
from market.money import ledger
from market.money.money import GB, Currency
from proxyd.ops.metrics.timed_store import TimedStore
from storage.bandwidth import sessions as queries
from storage.bandwidth.sessions import SessionRow
from storage.engines.errors import StoreError, UnavailableError
from storage.engines.store import Arguments, Result, Store, Transaction, Unit
from storage.money import ledger as ledger_queries


async def buy(market: Market, quota: int = GB) -> tuple[str, Purchase]:
    user = await market.person("10")
    return user, await market.bandwidth.buy(user, quota_bytes=quota, price_per_gb=None)


async def lease(market: Market, bought: Purchase) -> Grant:
    grant = await market.lease(bought)
    assert grant is not None
    return grant


async def stored(market: Market, bought: Purchase) -> SessionRow:
    row = await market.store.read(queries.find, bought.session_id)
    assert row is not None
    return row


class Interrupted(TimedStore):
    """Store whose first write is committed without a confirmation; later writes fail as well.

    Args:
        store: the real store.
        failures: the number of writes that fail.
    """

    def __init__(self, store: Store, failures: int) -> None:
        super().__init__(store)
        self._failures = range(failures)

    async def write(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        failures, self._failures = self._failures, self._failures[1:]
        if not failures or failures[0] == 0:
            result = await super().write(unit, *args, **kwargs)
            if not failures:
                return result
        raise UnavailableError("connection lost")


async def test_a_lease_grants_the_whole_remainder(market: Market) -> None:
    _, bought = await buy(market)
    grant = await lease(market, bought)
    assert (grant.granted_bytes, grant.status) == (GB, SessionStatus.ACTIVE)
    assert (await stored(market, bought)).bytes_leased == GB


async def test_wrong_credentials_find_nothing(market: Market) -> None:
    _, bought = await buy(market)
    assert await market.leases.find(bought.username, b"wrong") is None
    assert await market.leases.find("nobody", bought.password.encode()) is None
    shown = bought.username, bought.password.encode()
    assert await market.leases.find(*shown) == bought.session_id


async def test_a_missing_session_leases_nothing(market: Market) -> None:
    assert await market.leases.open("nobody") is None


@pytest.mark.both_engines
async def test_two_concurrent_leases_never_get_more_than_was_sold(market: Market) -> None:
    _, bought = await buy(market)
    outcomes = await asyncio.gather(
        *(market.leases.open(bought.session_id) for _ in range(8)),
        return_exceptions=True,
    )
    grants = [outcome for outcome in outcomes if isinstance(outcome, Grant)]
    assert sum(grant.granted_bytes for grant in grants) == GB
    assert all(isinstance(outcome, Grant | StoreError) for outcome in outcomes)


async def test_a_report_is_absolute_so_that_repeating_it_changes_nothing(market: Market) -> None:
    _, bought = await buy(market)
    grant = await lease(market, bought)
    usage = Usage(bought.session_id, grant.lease_id or "", 700)
    for _ in range(2):
        assert await market.leases.report([usage]) == [LeaseState(GB, is_used_up=False)]
    row = await stored(market, bought)
    assert (row.bytes_used, row.bytes_leased) == (700, GB - 700)


async def test_a_report_may_take_back_undelivered_bytes(market: Market) -> None:
    _, bought = await buy(market)
    grant = await lease(market, bought)
    await market.leases.report([Usage(bought.session_id, grant.lease_id or "", 700)])
    await market.leases.report([Usage(bought.session_id, grant.lease_id or "", 650)])
    assert (await stored(market, bought)).bytes_used == 650


@pytest.mark.parametrize("used", [GB + 1, -1])
async def test_only_impossible_counts_are_refused(market: Market, used: int) -> None:
    held = []
    for _ in range(3):
        _, bought = await buy(market)
        held.append((bought, await lease(market, bought)))
    said = [
        Usage(bought.session_id, grant.lease_id or "", size)
        for (bought, grant), size in zip(held, (700, used, 800), strict=True)
    ]
    answers = await market.leases.report(said)
    assert answers == [
        LeaseState(GB, is_used_up=False),
        Rejection(),
        LeaseState(GB, is_used_up=False),
    ]
    rows = [await stored(market, bought) for bought, _ in held]
    assert [row.bytes_used for row in rows] == [700, 0, 800]
    await market.leases.release(said)
    rows = [await stored(market, bought) for bought, _ in held]
    assert [(row.bytes_used, row.bytes_leased) for row in rows] == [(700, 0), (0, 0), (800, 0)]


async def set_leased(market: Market, bought: Purchase, size: int) -> None:
    """Change a session's counter as another program would."""

    async def change(tx: Transaction) -> None:
        await tx.run(
            "UPDATE bandwidth_sessions SET bytes_leased = :size WHERE id = :id",
            size=size,
            id=bought.session_id,
        )

    await market.store.write(change)


async def test_only_a_session_that_another_program_changed_is_refused(market: Market) -> None:
    _, changed = await buy(market)
    _, other = await buy(market)
    asks = [
        Ask(Usage(bought.session_id, (await lease(market, bought)).lease_id or "", 7), keep_bytes=9)
        for bought in (changed, other)
    ]
    await set_leased(market, changed, 5)
    assert await market.leases.exchange(asks) == [Rejection(), LeaseState(9, is_used_up=False)]
    assert (await stored(market, other)).bytes_used == 7
    await set_leased(market, changed, GB)


@pytest.mark.both_engines
async def test_a_session_that_another_program_changed_holds_up_no_other(market: Market) -> None:
    _, changed = await buy(market)
    _, other = await buy(market)
    usages = [
        Usage(bought.session_id, (await lease(market, bought)).lease_id or "", 7)
        for bought in (changed, other)
    ]
    await set_leased(market, changed, 5)
    await market.leases.release(usages)
    rows = [await stored(market, bought) for bought in (changed, other)]
    assert [(row.bytes_used, row.bytes_leased) for row in rows] == [(0, 0), (7, 0)]
    for bought in (changed, other):
        await lease(market, bought)
    await set_leased(market, changed, 5)
    assert await market.leases.recover() == 2
    await lease(market, changed)
    await set_leased(market, changed, 5)
    market.clock.now += 31 * 86_400
    assert await market.bandwidth.expire() == 2
    assert [(await stored(market, bought)).status for bought in (changed, other)] == ["expired"] * 2


async def test_a_report_costs_as_many_statements_for_many_sessions_as_for_one(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    for _ in range(20):
        _, bought = await buy(market)
        held.append((bought, await lease(market, bought)))
    asked = counted(market.store, "write", monkeypatch)
    for size in (1, 2, 20):
        said = [Usage(each.session_id, grant.lease_id or "", size) for each, grant in held[:size]]
        keep = GB // 2 if size == 2 else None
        await market.leases.exchange([Ask(usage, want_bytes=GB, keep_bytes=keep) for usage in said])
    await market.leases.release(said)
    assert asked == [5, 5, 5, 7]  # the release finds that nothing has changed
    monkeypatch.undo()
    for bought, _ in held:
        row = await stored(market, bought)
        assert (row.bytes_used, row.bytes_leased) == (20, 0)


@pytest.mark.parametrize("failures", [1, 3])
async def test_a_lease_whose_opening_was_not_confirmed_keeps_no_client_out(
    market: Market, failures: int
) -> None:
    """The store commits, goes away before its reply, and returns after a while."""
    _, bought = await buy(market)
    store = Interrupted(market.store, failures)
    leases = Leases(replace(market.context, store=store))
    for _ in range(failures):
        with pytest.raises(UnavailableError):
            await leases.open(bought.session_id)
    grant = await leases.open(bought.session_id)
    assert grant is not None
    assert grant.granted_bytes == GB


@pytest.mark.parametrize("failures", [1, 2])
async def test_an_uncertain_lease_is_given_back_without_a_further_question(
    market: Market, failures: int
) -> None:
    _, bought = await buy(market)
    leases = Leases(replace(market.context, store=Interrupted(market.store, failures)))
    with pytest.raises(UnavailableError):
        await leases.open(bought.session_id)
    assert (await stored(market, bought)).bytes_leased == GB
    if failures == 2:
        with pytest.raises(UnavailableError):
            await leases.forgo_unsure()
    await leases.forgo_unsure()
    assert (await stored(market, bought)).bytes_leased == 0
    grant = await leases.open(bought.session_id)
    await leases.forgo_unsure()
    assert grant is not None
    assert grant.granted_bytes == (await stored(market, bought)).bytes_leased == GB


async def test_a_released_lease_gives_the_rest_back(market: Market) -> None:
    _, bought = await buy(market)
    grant = await lease(market, bought)
    await market.leases.release([Usage(bought.session_id, grant.lease_id or "", 300)])
    row = await stored(market, bought)
    assert (row.bytes_used, row.bytes_leased) == (300, 0)
    assert (await lease(market, bought)).granted_bytes == GB - 300


async def test_a_report_on_a_closed_lease_is_answered_and_changes_nothing(market: Market) -> None:
    _, bought = await buy(market)
    grant = await lease(market, bought)
    usage = Usage(bought.session_id, grant.lease_id or "", 300)
    await market.leases.settle(bought.session_id, SessionStatus.ENDED, usage)
    late = Usage(bought.session_id, grant.lease_id or "", 900)
    assert await market.leases.report([late]) == [None]
    assert (await stored(market, bought)).bytes_used == 300


@pytest.mark.both_engines
async def test_settling_twice_captures_once(market: Market) -> None:
    user, bought = await buy(market)
    grant = await lease(market, bought)
    usage = Usage(bought.session_id, grant.lease_id or "", GB)
    outcomes = await asyncio.gather(
        market.leases.settle(bought.session_id, SessionStatus.EXHAUSTED, usage),
        market.leases.settle(bought.session_id, SessionStatus.ENDED, usage),
    )
    assert sorted(outcomes) == [False, True]
    account = ledger.available(user, Currency.USD)
    assert await market.store.read(ledger_queries.balance, account) == 9_000_000


@pytest.mark.parametrize(
    "status", [SessionStatus.ENDED, SessionStatus.EXHAUSTED, SessionStatus.EXPIRED]
)
async def test_a_session_that_is_over_is_known_and_grants_nothing(
    market: Market, status: SessionStatus
) -> None:
    _, bought = await buy(market)
    await market.leases.settle(bought.session_id, status, None)
    grant = await lease(market, bought)
    assert (grant.status, grant.lease_id, grant.granted_bytes) == (status, None, 0)


async def test_a_session_past_its_time_grants_nothing_before_the_sweeper_comes(
    market: Market,
) -> None:
    _, bought = await buy(market)
    market.clock.now += 31 * 86_400
    grant = await lease(market, bought)
    assert (grant.status, grant.lease_id) == (SessionStatus.EXPIRED, None)


async def test_recovery_bills_the_reported_bytes_and_frees_the_rest(market: Market) -> None:
    _, bought = await buy(market)
    grant = await lease(market, bought)
    await market.leases.report([Usage(bought.session_id, grant.lease_id or "", 12_345)])
    assert await market.leases.recover() == 1
    assert await market.leases.recover() == 0
    row = await stored(market, bought)
    assert (row.bytes_used, row.bytes_leased, row.status) == (12_345, 0, "active")
    assert (await lease(market, bought)).granted_bytes == GB - 12_345


async def test_recovery_settles_a_session_that_was_used_up(market: Market) -> None:
    _, bought = await buy(market, quota=1_000)
    grant = await lease(market, bought)
    await market.leases.report([Usage(bought.session_id, grant.lease_id or "", 1_000)])
    await market.leases.recover()
    assert (await stored(market, bought)).status == "exhausted"


async def test_recovery_goes_on_behind_a_session_that_cannot_be_settled(
    market: Market, caplog: pytest.LogCaptureFixture
) -> None:
    """It would keep every daemon from starting otherwise."""
    sold = [(await buy(market, quota=1_000))[1] for _ in range(3)]
    for bought in sold:
        grant = await lease(market, bought)
        await market.leases.report([Usage(bought.session_id, grant.lease_id or "", 1_000)])
    async with market.without_hold(sold[1]):
        assert await market.leases.recover() == 3
        statuses = [(await stored(market, bought)).status for bought in sold]
        assert statuses == ["exhausted", "active", "exhausted"]
        assert f"session {sold[1].session_id}: used up and cannot be settled" in caplog.text
    await market.leases.recover()
    assert (await stored(market, sold[1])).status == "exhausted"
