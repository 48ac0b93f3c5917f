"""Acts of the staff: one entry point, one row in the log, and one transaction."""

import ast
import asyncio
import json
import re

import pytest
from support.base.cases import cases
from support.daemons.process import ROOT as FOLDER
from support.market.market import Market
from support.market.staff import ROOT, acting, member

from market.base.errors import Code, MarketError
from market.staff.base.acts import (
    NOTE_MAX_CHARACTERS,
    REASON_MAX_CHARACTERS,
    USER,
    Act,
    Changes,
    act,
    checked_text,
)
from market.staff.base.chain import audit_log
from market.staff.base.roles import Action, Role
from market.staff.finding import users
from market.staff.members import accounts
from market.staff.members.accounts import Created
from storage.engines.store import Transaction
from storage.staff.base import log
from storage.staff.base.log import HeadRow


async def head(market: Market) -> HeadRow:
    return await market.store.read(log.head)


async def test_an_act_has_its_author_its_subject_and_its_reason(market: Market) -> None:
    created = await member(market, Role.SUPPORT)
    [row] = await market.store.read(log.shown, limit=10)
    assert (row.number, row.at, row.via) == (1, market.clock.now, "machine")
    assert (row.staff_email, row.unix_user) == (None, "root")
    assert (row.action, row.subject_kind, row.subject_id) == ("staff.create", "staff", created.id)
    assert row.text == "hired"
    assert json.loads(row.changes) == {"role": [None, "support"], "locked": [None, False]}


@pytest.mark.both_engines
async def test_an_act_that_fails_leaves_neither_a_change_nor_a_row(market: Market) -> None:
    user = await market.person()
    before = await head(market)

    async def fail(tx: Transaction) -> tuple[None, Changes]:
        await tx.run("UPDATE users SET username = 'changed'")
        raise MarketError(Code.TOO_BUSY)

    with pytest.raises(MarketError):
        await market.store.write(
            act, market.context, Act(ROOT, Action.USER_NOTE, USER, user, user), fail
        )
    assert await head(market) == before
    assert (await users.view(market.context, ROOT, user)).user.username == "person1"


@pytest.mark.both_engines
async def test_acts_at_the_same_time_have_numbers_of_their_own(market: Market) -> None:
    user = await market.person()
    await asyncio.gather(
        *(users.note(market.context, ROOT, user, f"note {at}") for at in range(10))
    )
    assert (await head(market)).number == 10
    assert all(not check.differences for check in (await audit_log(market.store)).checks)


@pytest.mark.both_engines
async def test_two_operators_that_lock_each_other_leave_one(market: Market) -> None:
    first, second = [await member(market, Role.OPERATOR, name) for name in ("first", "second")]
    results = await asyncio.gather(
        accounts.lock(market.context, acting(first), second.id, "he started it"),
        accounts.lock(market.context, acting(second), first.id, "she started it"),
        return_exceptions=True,
    )
    [refused] = [each for each in results if isinstance(each, MarketError)]
    assert refused.code is Code.NOT_PERMITTED
    states = [each.locked_at for each in await accounts.listed(market.context, ROOT)]
    assert states.count(None) == 1


async def test_no_member_acts_on_their_own_account(market: Market) -> None:
    await member(market, Role.OPERATOR, "other")
    author = acting(await member(market, Role.OPERATOR))
    for attempt in (
        accounts.lock(market.context, author, author.staff_id, "a holiday"),
        accounts.set_role(market.context, author, author.staff_id, Role.SUPPORT, "tired"),
    ):
        with pytest.raises(MarketError) as refused:
            await attempt
        assert refused.value.code is Code.NOT_PERMITTED


@pytest.fixture
async def created(market: Market) -> Created:
    """Begin with a member."""
    return await member(market, Role.OPERATOR)


@cases("text", ["", "  \n ", "a\x00b", "a\x1b[2J", "\ud800", "\u202eevil", "x" * 501])
async def test_a_text_that_a_log_cannot_show_is_refused(
    market: Market, created: Created, text: str
) -> None:
    before = await head(market)
    with pytest.raises(MarketError) as refused:
        await accounts.lock(market.context, ROOT, created.id, text)
    assert refused.value.code is Code.INVALID_FIELD
    assert await head(market) == before


def test_a_text_has_a_bound_and_may_have_lines() -> None:
    assert checked_text(" two\nlines ", "note", NOTE_MAX_CHARACTERS) == "two\nlines"
    assert len(checked_text("x" * REASON_MAX_CHARACTERS, "reason", REASON_MAX_CHARACTERS)) == 500


@pytest.mark.both_engines
@pytest.mark.usefixtures("created")
@cases(
    "statement",
    [
        "UPDATE staff_log SET action = 'nothing'",
        "DELETE FROM staff_log",
        "DELETE FROM staff_log_head",
        "UPDATE staff_log_head SET number = 0",
        "UPDATE staff_log_head SET hash = '' WHERE id = 'head'",
        "DELETE FROM texts",
        "UPDATE texts SET body = 'nicer'",
        "UPDATE texts SET body = 'nicer', erased_at = 1",
        "DELETE FROM staff",
        "UPDATE staff SET locked_at = 1",
        "UPDATE staff SET role = 'support'",
        "UPDATE staff SET role = 'owner'",
        "TRUNCATE staff_log",
        "TRUNCATE texts",
        "TRUNCATE staff_log_head",
    ],
)
async def test_the_database_refuses_to_rewrite_the_past(market: Market, statement: str) -> None:
    before = await market.store.read(log.shown, limit=10)

    async def rewrite(tx: Transaction) -> None:
        await tx.run(statement)

    with pytest.raises(
        Exception,
        match=r"append_only|only_erased|operator|known_role|"
        r"erased_whole|only_locked|syntax error",
    ):
        await market.store.write(rewrite)
    assert await market.store.read(log.shown, limit=10) == before
    assert (await accounts.listed(market.context, ROOT))[0].role == "operator"


def test_only_the_acts_and_accounts_write_the_tables_of_the_staff() -> None:
    """Beside the import contract: within `market.staff` few modules write, and each by an act."""
    writers = {
        path.name
        for path in (FOLDER / "market" / "staff").rglob("*.py")
        if re.search(
            r"^from storage\.staff(\.\w+)*( import .*\b|\.)(money_|ticket_)?writes\b",
            path.read_text(),
            re.MULTILINE,
        )
    }
    # The attempts to log in are no acts: they lock the log, and write no row of it.
    assert writers == {
        "acts.py",
        "accounts.py",
        "approvals.py",
        "attempts.py",
        "cases.py",
        "clawing.py",
        "exit_use.py",
        "logins.py",
        "requests.py",
        "rule_stops.py",
        "rule_tickets.py",
        "second_person.py",
        "shown_reasons.py",
        "tickets.py",
        "user_limits.py",
    }
    trees = [
        ast.parse((FOLDER / "market" / "staff" / "members" / name).read_text())
        for name in ("accounts.py", "logins.py")
    ]
    for function in (each for tree in trees for each in ast.walk(tree)):
        if isinstance(function, ast.AsyncFunctionDef):
            writes = [each for each in _own(function) if ast.unparse(each).startswith("writes.")]
            returns = ast.unparse(function.returns) if function.returns else ""
            assert not writes or returns.endswith(("Changes]", "Changes")), function.name


def _own(function: ast.AST) -> list[ast.AST]:
    """Return the nodes of a function without those of functions inside it."""
    found = []
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.AsyncFunctionDef):
            found += [node, *_own(node)]
    return found
