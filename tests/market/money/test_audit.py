"""The audit finds each kind of damage, and nothing in undamaged books."""

from collections.abc import AsyncIterator

import pytest
from support.base.clock import Clock
from support.market.market import Market

from market.bandwidth.leases import Usage
from market.money import ledger
from market.money.audit import audit_ledger
from market.money.money import GB, Currency
from storage.engines.open import open_store
from storage.engines.store import Store, Transaction
from storage.money.ledger import HoldRow

USD = Currency.USD


@pytest.fixture
async def damaged(store: Store, clock: Clock) -> AsyncIterator[Market]:
    """A marketplace with one active session, whose ledger the test may damage."""
    made = Market(store, clock)
    user = await made.person("5")
    await made.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    assert (await audit_ledger(store)).passed
    yield made
    made.passwords.close()


async def run(store: Store, statement: str) -> None:
    async def tamper(tx: Transaction) -> None:
        await tx.run(statement)

    await store.write(tamper)


async def broken_promises(store: Store) -> list[str]:
    report = await audit_ledger(store)
    return [check.promise for check in report.checks if check.differences]


@pytest.mark.both_engines
async def test_a_changed_balance_is_found(damaged: Market) -> None:
    await run(damaged.store, "UPDATE accounts SET balance = balance + 1 WHERE kind = 'available'")
    promises = await broken_promises(damaged.store)
    assert "every balance is the sum of its entries" in promises
    assert "each currency sums to zero" in promises


@pytest.mark.both_engines
async def test_a_changed_held_balance_is_found(damaged: Market) -> None:
    await run(damaged.store, "UPDATE accounts SET balance = 7 WHERE kind = 'held'")
    assert "held money is the sum of open holds" in await broken_promises(damaged.store)


@pytest.mark.both_engines
async def test_a_session_that_ended_with_its_hold_open_is_found(damaged: Market) -> None:
    await run(damaged.store, "UPDATE bandwidth_sessions SET status = 'ended'")
    assert await broken_promises(damaged.store) == ["open holds are open work"]


async def test_a_hold_for_no_work_is_found(damaged: Market) -> None:
    user = await damaged.person("1")
    hold = HoldRow("bandwidth:none", user, USD, 5, None)
    await damaged.store.write(ledger.hold, hold, transfer_id="t", now=1)
    report = await audit_ledger(damaged.store)
    assert "bandwidth:none: open hold without work" in {
        difference for check in report.checks for difference in check.differences
    }


@pytest.mark.both_engines
async def test_work_without_a_hold_is_found(damaged: Market) -> None:
    await run(damaged.store, "DELETE FROM holds")
    assert "open holds are open work" in await broken_promises(damaged.store)


@pytest.mark.both_engines
async def test_a_hold_that_was_not_set_aside_is_found(damaged: Market) -> None:
    await run(damaged.store, "UPDATE holds SET amount = amount + 1")
    assert "every hold was set aside in full" in await broken_promises(damaged.store)


@pytest.mark.both_engines
async def test_a_capture_that_was_not_paid_is_found(damaged: Market) -> None:
    await run(damaged.store, "UPDATE holds SET captured = 1, resolved_at = 1")
    promise = "every resolved hold paid out what it captured, and released the rest"
    assert promise in await broken_promises(damaged.store)


@pytest.mark.both_engines
async def test_bytes_that_no_lease_accounts_for_are_found(damaged: Market) -> None:
    await run(damaged.store, "UPDATE bandwidth_sessions SET bytes_used = 1")
    assert await broken_promises(damaged.store) == [
        "every session's counters are the sums of its leases",
        "the hours and days of every session add up to what it has used",
    ]


@pytest.mark.both_engines
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE session_usage SET used_bytes = used_bytes - 1",
        "DELETE FROM session_usage",
        """
        INSERT INTO session_usage (user_id, begins_at, session_id, span_seconds, used_bytes)
        SELECT user_id, 0, id, 86400, 1 FROM bandwidth_sessions
        """,
    ],
)
async def test_hours_that_do_not_add_up_are_found(damaged: Market, damage: str) -> None:
    user = await damaged.person("1")
    bought = await damaged.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    grant = await damaged.lease(bought)
    assert grant is not None
    await damaged.leases.report([Usage(bought.session_id, grant.lease_id or "", 700)])
    assert (await audit_ledger(damaged.store)).passed
    await run(damaged.store, damage)
    assert await broken_promises(damaged.store) == [
        "the hours and days of every session add up to what it has used"
    ]


async def test_an_empty_ledger_agrees(store_url: str) -> None:
    store = await open_store(store_url)
    report = await audit_ledger(store)
    await store.close()
    assert report.passed
    assert report.transfers == 0
