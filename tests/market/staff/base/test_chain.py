"""The chain of the log: a rewritten past is found, and an erased text breaks nothing."""

import pytest
from support.market.market import Market
from support.market.staff import ROOT, member

from market.staff.base.chain import CHAIN, STATES, TEXTS, audit_log, digest, text_digest
from market.staff.base.roles import Role
from market.staff.finding import users
from market.staff.members import accounts
from storage.engines.store import Transaction
from storage.staff.base.log import LogRow

pytestmark = pytest.mark.both_engines

ROW = LogRow(
    1, 2, "machine", None, "root", None, "search", "user", None, None, None, None, "{}", ""
)


async def found(market: Market) -> dict[str, tuple[str, ...]]:
    report = await audit_log(market.store)
    return {check.promise: check.differences for check in report.checks if check.differences}


async def filled(market: Market) -> str:
    """Write some acts; return a user."""
    user = await market.person()
    created = await member(market, Role.OPERATOR)
    await member(market, Role.SUPPORT)
    await users.note(market.context, ROOT, user, "Ada of Example Road 7 asked")
    await users.view(market.context, ROOT, user)
    await accounts.lock(market.context, ROOT, "support@staff.example.com", "left")
    assert created.id
    return user


async def tampered(market: Market, engine: str, *statements: str) -> None:
    """Run statements as the owner of the database, who can switch triggers off."""

    async def run(tx: Transaction) -> None:
        if engine == "postgres":
            await tx.run("SET LOCAL session_replication_role = replica")
        else:
            names = await tx.all(str, "SELECT name FROM sqlite_master WHERE type = 'trigger'")
            for name in names:
                if name.startswith(("staff", "texts")):
                    await tx.run(f"DROP TRIGGER {name}")
        for statement in statements:
            await tx.run(statement)

    await market.store.write(run)


async def test_an_honest_log_passes(market: Market) -> None:
    assert await found(market) == {}
    await filled(market)
    assert await found(market) == {}
    report = await audit_log(market.store)
    assert report.head.number == 5
    assert len(report.head.hash) == 64


@pytest.mark.parametrize(
    ("statement", "promise", "words"),
    [
        ("UPDATE staff_log SET unix_user = 'eve' WHERE number = 3", CHAIN, "row 3 was changed"),
        ("UPDATE staff_log SET at = at + 1 WHERE number = 1", CHAIN, "row 1 was changed"),
        ("UPDATE staff_log SET text_hash = 'x' WHERE number = 3", CHAIN, "row 3 was changed"),
        ("DELETE FROM staff_log WHERE number = 4", CHAIN, "row 4 is missing"),
        ("DELETE FROM staff_log WHERE number = 5", CHAIN, "the log ends at row 4"),
        ("DELETE FROM staff_log_head", CHAIN, "the head is missing"),
        ("UPDATE staff_log_head SET number = 4", CHAIN, "the head is at row 4"),
        (
            """
            INSERT INTO staff_log
                (number, at, via, unix_user, action, subject_kind, changes, hash)
            VALUES (6, 1, 'machine', 'root', 'search', 'user', '{}', 'x')
            """,
            CHAIN,
            "row 6 was changed",
        ),
        ("UPDATE texts SET body = 'paid' WHERE log_number = 3", TEXTS, "row 3: its text was"),
        ("DELETE FROM texts WHERE log_number = 3", TEXTS, "row 3: its text is missing"),
        (
            """
            INSERT INTO texts (id, kind, log_number, body, salt, created_at)
            VALUES ('t', 'note', 3, 'slander', 'x', 1)
            """,
            TEXTS,
            "text t: no act",
        ),
        ("UPDATE staff SET role = 'operator' WHERE role = 'support'", STATES, "role is operator"),
        ("UPDATE staff SET locked_at = NULL", STATES, "locked is False"),
    ],
)
async def test_a_direct_write_is_found(
    market: Market, engine: str, statement: str, promise: str, words: str
) -> None:
    await filled(market)
    await tampered(market, engine, statement)
    differences = await found(market)
    assert words in " ".join(differences[promise])


async def test_an_account_that_no_act_made_is_found(market: Market, engine: str) -> None:
    await filled(market)
    await tampered(
        market,
        engine,
        "INSERT INTO staff (id, email, email_key, role, password_hash, sealed_factor, created_at)"
        " VALUES ('eve', 'eve', 'eve', 'operator', '', '', 1)",
    )
    assert "eve: role is operator, the log has None" in (await found(market))[STATES]


async def test_a_member_who_was_deleted_is_found(market: Market, engine: str) -> None:
    await filled(market)
    await tampered(
        market, engine, "DELETE FROM staff_recovery", "DELETE FROM staff WHERE role = 'support'"
    )
    assert "who is missing" in " ".join((await found(market))[STATES])


async def test_an_erased_text_leaves_the_chain_valid(market: Market) -> None:
    user = await filled(market)

    async def erase(tx: Transaction) -> None:
        sql = "UPDATE texts SET body = '', salt = '', erased_at = 9 WHERE user_id = :user"
        assert await tx.run(sql, user=user) == 1

    await market.store.write(erase)
    assert await found(market) == {}
    page = await users.view(market.context, ROOT, user)
    assert page.notes == []

    async def everything(tx: Transaction) -> str:
        rows = [
            await tx.all(lambda *row: repr(row), f"SELECT * FROM {table}")
            for table in ("staff_log", "texts")
        ]
        return repr(rows)

    assert "Example Road" not in await market.store.read(everything)


async def test_changes_that_are_no_json_break_the_chain_and_not_the_audit(
    market: Market, engine: str
) -> None:
    await filled(market)
    await tampered(
        market,
        engine,
        "UPDATE staff_log SET changes = 'x' WHERE number = 1",
        "UPDATE staff_log SET changes = '[1]' WHERE number = 2",
    )
    assert len((await found(market))[CHAIN]) == 2


def test_a_hash_covers_each_column_and_the_row_before() -> None:
    hashes = {digest(ROW, ""), digest(ROW, "x")}
    for name in LogRow._fields:
        changed = ROW._replace(**{name: 9 if name in ("number", "at") else "other"})
        hashes.add(digest(changed, ""))
    assert len(hashes) == len(LogRow._fields) + 1  # the hash itself does not count


def test_a_salt_hides_a_text() -> None:
    assert text_digest("a" * 32, "refund") != text_digest("b" * 32, "refund")
