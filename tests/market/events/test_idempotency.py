"""A receipt keeps the reply with the work, and replays it, on both engines."""

import asyncio

import pytest
from support.base.cases import cases
from support.market.market import SECRET, Market

from market.base.errors import Code, MarketError
from market.events import idempotency
from market.events.idempotency import KeyedRequest, Receipt, Replayed, Seal
from storage.engines.store import Transaction
from storage.events import idempotency as queries
from storage.events.idempotency import AnswerRow

SEAL = Seal(SECRET)


@pytest.fixture
async def user(market: Market) -> str:
    return await market.person()


def receipt(market: Market, user: str, says: str = "hash") -> Receipt[int]:
    request = KeyedRequest(user, "a", says, SEAL, market.clock.seconds())
    return Receipt(request, lambda outcome: b"%d" % outcome)


async def work(tx: Transaction, kept: Receipt[int], outcome: int) -> int:
    await kept.keep(tx, outcome)
    return outcome


async def count(tx: Transaction) -> int:
    return await tx.one(int, "SELECT COUNT(*) FROM idempotency_keys") or 0


@pytest.mark.both_engines
async def test_of_many_at_once_one_does_the_work_and_the_others_get_its_reply(
    market: Market, user: str
) -> None:
    outcomes = await asyncio.gather(
        *(market.store.write(work, receipt(market, user), outcome) for outcome in range(5)),
        return_exceptions=True,
    )
    [done] = [each for each in outcomes if isinstance(each, int)]
    replies = [each.answer for each in outcomes if isinstance(each, Replayed)]
    assert replies == [b"%d" % done] * 4
    assert await market.store.read(count) == 1


async def test_work_that_fails_keeps_no_reply(market: Market, user: str) -> None:
    async def failing(tx: Transaction) -> None:
        await work(tx, receipt(market, user), 1)
        raise MarketError(Code.INSUFFICIENT_FUNDS)

    with pytest.raises(MarketError):
        await market.store.write(failing)
    assert await market.store.write(work, receipt(market, user), 2) == 2


async def test_a_key_of_another_request_is_refused(market: Market, user: str) -> None:
    await market.store.write(work, receipt(market, user), 1)
    with pytest.raises(MarketError) as caught:
        await market.store.write(work, receipt(market, user, says="another"), 2)
    assert caught.value.code is Code.IDEMPOTENCY_KEY_REUSED


async def test_a_row_that_an_earlier_version_wrote_is_replayed(market: Market, user: str) -> None:
    """Format of the stored reply: sealed, by user and key."""
    row = AnswerRow(user, "a", "hash", SEAL.close(b"as before"), market.clock.seconds())
    await market.store.write(queries.insert, row)
    with pytest.raises(Replayed) as replayed:
        await market.store.write(work, receipt(market, user), 1)
    assert replayed.value.answer == b"as before"


@pytest.mark.both_engines
async def test_after_a_day_the_work_is_done_again_though_the_row_is_still_there(
    market: Market, user: str
) -> None:
    await market.store.write(work, receipt(market, user), 1)
    market.clock.now += idempotency.KEEP_SECONDS - 1
    with pytest.raises(Replayed):
        await market.store.read(receipt(market, user).replay, user)
    market.clock.now += 1
    await market.store.read(receipt(market, user, says="another").replay, user)  # it is over
    assert await market.store.write(work, receipt(market, user), 2) == 2
    with pytest.raises(Replayed) as replayed:
        await market.store.write(work, receipt(market, user), 3)
    assert replayed.value.answer == b"2"


async def test_a_user_that_the_work_itself_made_gets_its_reply(market: Market, user: str) -> None:
    kept = receipt(market, "")
    await market.store.read(kept.replay, user)  # no reply exists yet
    await market.store.write(kept.keep_for, user, 1)
    with pytest.raises(Replayed) as replayed:
        await market.store.read(kept.replay, user)
    assert replayed.value.answer == b"1"
    await market.store.read(kept.replay, await market.person())


@cases("key", ["", "x" * 256, "a\nb"])
def test_a_key_is_printable_and_short(key: str) -> None:
    with pytest.raises(MarketError) as caught:
        KeyedRequest("ada", key, "hash", SEAL, 0)
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, "Idempotency-Key")


async def test_a_fresh_request_forgets_old_replies(market: Market, user: str) -> None:
    old = market.clock.seconds() - idempotency.KEEP_SECONDS
    for key in ("x", "y"):
        await market.store.write(queries.insert, AnswerRow(user, key, "hash", "sealed", old))
    await market.store.write(work, receipt(market, user), 1)
    assert await market.store.read(count) == 1
