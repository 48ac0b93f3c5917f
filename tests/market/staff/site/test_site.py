"""Acts on the public side: invitations, and versions of texts."""

import ast
import hashlib
from pathlib import Path
from typing import Any

import pytest
from support.base.cases import cases
from support.market.market import Market
from support.market.site import invite, publish
from support.market.staff import ROOT

import market.staff.site.site
from market.base.errors import Code, MarketError
from market.staff.finding import history
from market.staff.site import site
from market.staff.site.site import NOTICE_DAYS, TEXT_MAX_CHARACTERS, TextKind
from storage.site import texts

DAY = 86_400


async def newest_act(market: Market) -> Any:
    [row] = await history.read(market.context, ROOT, limit=1)
    return row


@pytest.mark.both_engines
async def test_an_invitation_is_an_act_that_can_be_withdrawn(market: Market) -> None:
    made = await invite(market, uses=3)
    act = await newest_act(market)
    assert (act.action, act.subject_id, act.text) == ("site.invite", made.row.id, "a friend")
    assert made.code not in act.changes
    assert await site.invited(market.context, ROOT) == [made.row]
    await site.withdraw(market.context, ROOT, made.row.id, "a mistake")
    assert (await newest_act(market)).changes == '{"uses_left":[3,0]}'
    [row] = await site.invited(market.context, ROOT)
    assert row.uses_left == 0
    with pytest.raises(MarketError) as caught:
        await site.withdraw(market.context, ROOT, "nothing", "a mistake")
    assert caught.value.code is Code.INVITATION_NOT_FOUND


@pytest.mark.parametrize(("uses", "days"), [(0, 1), (10_001, 1), (1, 0), (1, 366)])
async def test_an_invitation_has_bounds(market: Market, uses: int, days: int) -> None:
    with pytest.raises(MarketError) as caught:
        await invite(market, uses=uses, days=days)
    assert caught.value.code is Code.INVALID_FIELD


@pytest.mark.both_engines
async def test_texts_have_versions_and_translations(market: Market) -> None:
    first = await publish(market, body="Be kind.\r\n")
    assert (first.version, first.valid_from) == (1, market.clock.now)
    assert first.hash == hashlib.sha256(b"Be kind.\n").hexdigest()
    act = await newest_act(market)
    assert (act.action, act.subject_id) == ("site.publish", "terms")
    assert first.hash in act.changes
    second = await publish(market, days=NOTICE_DAYS)
    turkish = await publish(market, locale="tr", version=2)
    assert (second.version, turkish.version) == (2, 2)
    assert turkish.valid_from == second.valid_from
    await publish(market, TextKind.IMPRINT)
    rows = await site.published(market.context, ROOT)
    assert [(row.kind, row.version, row.locale) for row in rows] == [
        ("terms", 1, "en"),
        ("terms", 2, "en"),
        ("terms", 2, "tr"),
        ("imprint", 1, "en"),
    ]


async def refused(market: Market, **changes: Any) -> None:
    with pytest.raises(MarketError) as caught:
        await publish(market, **changes)
    assert caught.value.code in (Code.INVALID_FIELD, Code.TEXT_NOT_FOUND)


@cases(
    "changes",
    [
        {"body": ""},
        {"body": " \n"},
        {"body": "a\x00"},
        {"body": "x" * (TEXT_MAX_CHARACTERS + 1)},
        {"locale": ""},
        {"locale": "english"},
        {"locale": "../x"},
        {"locale": "xx"},
        {"locale": "xx-DE"},
        {"version": 7},
        {"days": 3_651},
    ],
)
async def test_a_text_that_cannot_be_shown_is_refused(
    market: Market, changes: dict[str, Any]
) -> None:
    await refused(market, **changes)
    assert await history.read(market.context, ROOT, limit=1) == []


async def test_users_have_fourteen_days_to_read_a_change(market: Market) -> None:
    await publish(market)
    for days in (-1, 0, NOTICE_DAYS - 1):
        await refused(market, days=days)
    await publish(market, days=NOTICE_DAYS + 30)
    await refused(market, locale="en", version=2)
    await publish(market, TextKind.IMPRINT)
    await publish(market, TextKind.IMPRINT)  # needs no consent, so it is valid now


@pytest.mark.parametrize("kind", [TextKind.TERMS, TextKind.IMPRINT])
async def test_a_version_with_a_wrong_year_is_replaced_before_it_is_valid(
    market: Market, kind: TextKind
) -> None:
    await publish(market, kind)
    await publish(market, kind, days=3_600)
    right = await publish(market, kind, days=NOTICE_DAYS)
    market.clock.now = right.valid_from
    for days in (0, 3_650):
        found = await market.store.read(texts.valid, kind, market.clock.now + days * 86_400)
        assert found is not None
        assert found.version == 3


def test_only_acts_write() -> None:
    """Each function that writes is the change of an act, whose transaction writes its row."""
    tree = ast.parse(Path(market.staff.site.site.__file__).read_text())
    writers = {"insert_invitation", "withdraw_invitation", "insert_text"}
    found = 0
    for function in ast.walk(tree):
        if isinstance(function, ast.AsyncFunctionDef):
            calls = {ast.unparse(each.func) for each in ast.walk(function) if _is_call(each)}
            if calls & writers and function.name == "change":
                found += 1
    assert found == len(writers)


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call)
