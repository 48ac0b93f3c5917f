"""E-mails that tell users of a change: put with it, to addresses that were confirmed."""

import pytest
from support.market.market import Market
from support.market.staff import ROOT

from market.accounts.letters import Letters
from market.accounts.mail import Message, decoded
from market.staff.site import site
from market.staff.site.site import Publication, TextKind
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


async def test_an_email_links_to_the_texts_that_are_valid(market: Market) -> None:
    me = await market.person()
    await market.store.write(users.set_email_verified, me, market.clock.now)
    letters = Letters(market.emails, "https://app.example.com", "\n-- \nExample\n")

    async def text(name: str) -> str:
        assert await market.store.write(letters.put, me, name, message)
        rows = await market.emails.due(again=False, limit=100)
        [payload] = [market.emails.opened(row) for row in rows if row.item_key == name]
        assert payload is not None
        return decoded(payload).text

    body = "https://app.example.com"
    assert await text("one") == f"{body}\n-- \nExample\n"
    for kind, days in ((TextKind.TERMS, 0), (TextKind.IMPRINT, 0), (TextKind.TERMS, 20)):
        valid_from = market.clock.now + days * 86_400
        new = Publication(kind, "en", "# A text", valid_from)
        await site.publish(market.context, ROOT, new, "the first")
    assert await text("two") == (
        f"{body}\n-- \nExample\nTerms of use: {body}/terms\nImprint: {body}/imprint\n"
    )
    letters = Letters(market.emails, body)
    assert (await text("three")).startswith(f"{body}\n-- \nTerms of use: ")
