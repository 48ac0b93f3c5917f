"""E-mails that tell users of a change: put with it, to addresses that were confirmed."""

import pytest
from support.market.market import Market

from market.accounts.letters import Letters
from market.accounts.mail import Message
from storage.accounts import users
from storage.engines.store import Transaction


def message(to: str, app_url: str) -> Message:
    return Message(to, "x", app_url)


async def test_an_email_goes_to_an_address_that_was_confirmed_and_with_the_change(
    market: Market,
) -> None:
    me = await market.person()
    letters = Letters(market.emails, "https://app.example.com")
    before = len(await market.emails.due(again=False, limit=100))

    async def put(tx: Transaction, is_done: bool = True) -> bool:
        is_put = await letters.put(tx, me, "name", message)
        if not is_done:
            raise LookupError
        return is_put

    assert not await market.store.write(put)
    await market.store.write(users.set_email_verified, me, market.clock.now)
    with pytest.raises(LookupError):
        await market.store.write(put, False)
    assert len(await market.emails.due(again=False, limit=100)) == before
    for _ in range(2):  # a later one of the same name replaces the one before
        assert await market.store.write(put)
    assert len(await market.emails.due(again=False, limit=100)) == before + 1
