"""Migrations: any earlier database reaches the schema of a fresh one, once, for any opener."""

import asyncio
import gzip
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from support.base.clock import Clock
from support.daemons import process
from support.database import postgres
from support.market.market import Market

from market.bandwidth.leases import Usage
from market.money.audit import audit_ledger
from storage.accounts import referrals
from storage.bandwidth import usage
from storage.engines import migrate
from storage.engines.errors import CannotOpenError, ConstraintError
from storage.engines.migrate import Migration
from storage.engines.open import open_store
from storage.engines.store import Store, Transaction
from storage.site.alerts import note_backup

RELEASED = 11  # the last step of 0.1.0
DATABASES = Path(__file__).parent / "databases"

SCHEMA = {
    "sqlite": """
        SELECT type || ' ' || name || ' ' || COALESCE(sql, '') FROM sqlite_master ORDER BY 1
    """,
    "postgres": """
        SELECT table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable
            || ' ' || COALESCE(column_default, '')
        FROM information_schema.columns WHERE table_schema = 'public'
        UNION ALL
        SELECT 'constraint ' || conname || ' ' || pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace
        UNION ALL
        SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'public'
        UNION ALL
        SELECT 'trigger ' || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
        ORDER BY 1
    """,
}


def engine_of(url: str) -> str:
    return url.partition(":")[0].replace("postgresql", "postgres")


async def schema(store: Store, url: str) -> list[str]:
    async def read(tx: Transaction) -> list[str]:
        return await tx.all(str, SCHEMA[engine_of(url)])

    return await store.read(read)


async def versions(store: Store) -> list[int]:
    async def read(tx: Transaction) -> list[int]:
        return await tx.all(int, "SELECT version FROM schema_versions ORDER BY version")

    return await store.read(read)


async def opened_with(
    monkeypatch: pytest.MonkeyPatch, url: str, steps: Sequence[Migration]
) -> list[str]:
    monkeypatch.setattr(migrate, "migrations", lambda engine: steps)
    store = await open_store(url)
    try:
        return await schema(store, url)
    finally:
        await store.close()


async def test_a_fresh_database_gets_every_step_and_keeps_its_rows(empty_url: str) -> None:
    expected = [step.version for step in migrate.migrations(engine_of(empty_url))]
    for _ in range(2):
        store = await open_store(empty_url)
        assert await versions(store) == expected
        await store.close()


async def test_steps_taken_one_by_one_reach_the_same_schema(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [
        *migrate.migrations(engine_of(empty_url)),
        Migration(9001, "later", ("CREATE TABLE later (id TEXT PRIMARY KEY);",)),
        Migration(9002, "latest", ("ALTER TABLE later ADD COLUMN size BIGINT;",)),
    ]
    grown: list[list[str]] = [
        await opened_with(monkeypatch, empty_url, steps[:count])
        for count in range(1, len(steps) + 1)
    ]
    # A step may be for the other engine alone.
    changing = [
        step
        for step in steps
        if any(not line.startswith("--") for line in "\n".join(step.scripts).splitlines())
    ]
    assert len({tuple(each) for each in grown}) == len(changing)
    assert any("later" in line for line in grown[-1])


async def test_the_program_of_a_deploy_leaves_the_descriptions_of_its_jobs(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [step for step in migrate.migrations(engine_of(empty_url)) if step.version <= RELEASED]
    with monkeypatch.context() as patched:
        await opened_with(patched, empty_url, steps)
        store = await open_store(empty_url)

    async def fill(tx: Transaction) -> None:
        await insert_user(tx, "u", "v")
        for deploy_id, command in (("plain", None), ("secret", "run --api-key SECRET123")):
            await tx.run(
                """
                INSERT INTO deploys (id, user_id, job_name, job_type, gpu_model, gpu_count,
                    duration_hrs, replicas, currency, price, created_at, command)
                VALUES (:id, 'u', '', 'Jupyter', '', 1, 1, 1, 'usd', 0, 1, :command)
                """,
                id=deploy_id,
                command=command,
            )
            await tx.run(
                """
                INSERT INTO jobs (id, user_id, title, job_type, price_credit, duration_hrs,
                    description, requirements, status, created_at, deploy_id)
                VALUES (:id, 'u', 'four', 'docker', 0, 1, :description, 'GPU', 'waiting', 1, :id)
                """,
                id=deploy_id,
                description=f"Replica 1\nType: Jupyter\nCommand: {command}",
            )
        await tx.run(
            """
            INSERT INTO referrals (user_id, referrer_id, referrer_bonus, referred_bonus, created_at)
            VALUES ('u', 'v', 50, 25, 7)
            """
        )

    await store.write(fill)
    await store.close()
    store = await open_store(empty_url)

    async def look(tx: Transaction) -> list[tuple[object, ...]]:
        return await tx.all(
            lambda *row: row, "SELECT id, description, text_bytes > 40 FROM jobs ORDER BY id"
        )

    assert await store.read(look) == [
        ("plain", "Replica 1\nType: Jupyter\nCommand: None", True),
        ("secret", "A replica of the deploy secret\nType: Jupyter", True),
    ]
    assert await store.read(referrals.paid_since, 7) == 75
    await store.close()


async def insert_user(tx: Transaction, *names: str) -> None:
    for name in names:
        await tx.run(
            """
            INSERT INTO users (id, username, username_key, email, email_key, password_hash,
                created_at)
            VALUES (:name, :name, :name, :name, :name, '', 1)
            """,
            name=name,
        )


async def test_the_reason_of_a_failed_job_is_told_apart_from_its_result(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = migrate.migrations(engine_of(empty_url))
    with monkeypatch.context() as patched:
        await opened_with(patched, empty_url, steps[:9])
        store = await open_store(empty_url)

    async def fill(tx: Transaction) -> None:
        await insert_user(tx, "u")
        for status in ("waiting", "failed", "completed"):
            await tx.run(
                """
                INSERT INTO jobs (id, user_id, title, job_type, price_credit, duration_hrs,
                    description, requirements, status, created_at, accepted_at, result)
                VALUES (:status, 'u', '', 'script', 0, 1, '', '', :status, 1, 2, 'words')
                """,
                status=status,
            )

    await store.write(fill)
    await store.close()
    store = await open_store(empty_url)

    async def look(tx: Transaction) -> list[tuple[object, ...]]:
        return await tx.all(
            lambda *row: row,
            "SELECT status, result, failure_reason, accepted_at FROM jobs ORDER BY status",
        )

    assert await store.read(look) == [
        ("completed", "words", None, 2),
        ("failed", None, "words", 2),
        ("waiting", None, "words", None),
    ]
    await store.close()


async def test_earlier_transfers_are_told_apart_and_stay_unchangeable(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = migrate.migrations(engine_of(empty_url))
    earlier = [step for step in steps if step.version <= RELEASED]
    told_apart = {
        "deposit:invoice-1:usd": ("deposit", "invoice-1"),
        "deposit:a:b:hold:credit": ("deposit", "a:b:hold"),
        "referral:u1": ("referral", "referral"),
        "goodness:g1": ("reward", "photo:g1"),
        "job:j1:hold": ("hold", "job:j1"),
        "job:j1:capture": ("capture", "job:j1"),
        "job:j1:release": ("release", "job:j1"),
        "job:j1:payout": ("payout", "job:j1"),
        "correction 7": ("other", "correction 7"),
    }
    with monkeypatch.context() as patched:
        await opened_with(patched, empty_url, earlier)
        patched.setattr(migrate, "migrations", lambda engine: earlier)
        store = await open_store(empty_url)

    async def fill(tx: Transaction) -> None:
        for key in told_apart:
            await tx.run(
                "INSERT INTO transfers (id, business_key, created_at) VALUES (:key, :key, 1)",
                key=key,
            )

    await store.write(fill)
    await store.close()
    store = await open_store(empty_url)

    async def look(tx: Transaction) -> dict[str, tuple[str, str]]:
        return dict(
            await tx.all(
                lambda key, *words: (key, words),
                "SELECT business_key, kind, reference FROM transfers",
            )
        )

    async def tamper(tx: Transaction) -> None:
        await tx.run("UPDATE transfers SET kind = 'deposit'")

    assert await store.read(look) == told_apart
    with pytest.raises(ConstraintError, match="append_only"):
        await store.write(tamper)
    await store.close()


async def test_users_of_an_earlier_database_may_have_pending_accounts(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = migrate.migrations(engine_of(empty_url))
    with monkeypatch.context() as patched:
        await opened_with(patched, empty_url, [step for step in steps if step.version <= RELEASED])
        store = await open_store(empty_url)

    async def account(tx: Transaction, kind: str, user: str | None) -> None:
        await tx.run(
            """
            INSERT INTO accounts (id, user_id, kind, currency, balance)
            VALUES (:kind, :user, :kind, 'usd', 7)
            """,
            kind=kind,
            user=user,
        )

    async def read(tx: Transaction) -> list[tuple[object, ...]]:
        return await tx.all(
            lambda *row: row,
            "SELECT id, kind, balance FROM accounts WHERE user_id = 'u' ORDER BY id",
        )

    await store.write(insert_user, "u")
    await store.write(account, "held", "u")
    with pytest.raises(ConstraintError, match="accounts_known_kind"):
        await store.write(account, "pending", "u")
    await store.close()
    store = await open_store(empty_url)
    await store.write(account, "pending", "u")
    assert await store.read(read) == [("held", "held", 7), ("pending", "pending", 7)]
    for kind, user in (("other", "u"), ("pending", None), ("rewards", "u")):
        with pytest.raises(ConstraintError):
            await store.write(account, kind, user)
    await store.close()


async def restore(url: str, name: str) -> None:
    """Fill an empty database with the dump of another version."""
    with gzip.open(DATABASES / f"{name}.{engine_of(url)}.sql.gz", "rt", encoding="utf-8") as file:
        script = file.read()
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(script)
    else:
        await postgres.execute(url, script)


def comparable(line: str) -> str:
    """Return a line of a schema without the comments, blanks and quotes that SQLite keeps."""
    line = re.sub(r"--[^\n]*", "", line).replace('"', "")
    return re.sub(r"\s+", " ", re.sub(r"\s*([(),])\s*", r"\1", line))


@pytest.mark.parametrize("name", ["release_0_1_0", "separate_steps"])
async def test_the_database_of_an_earlier_program_gets_the_schema_of_a_fresh_one(
    empty_url: str, store: Store, store_url: str, name: str
) -> None:
    """Of 0.1.0, and of an unreleased program that has taken the steps 12 to 40 one by one."""
    earlier_url = empty_url.replace("proxyd.db", "earlier.db")
    await restore(earlier_url, name)
    process.assert_audit(earlier_url)
    earlier = await open_store(earlier_url)
    try:
        expected = {comparable(line) for line in await schema(store, store_url)}
        actual = {comparable(line) for line in await schema(earlier, earlier_url)}
        assert (actual - expected, expected - actual) == (set(), set())
        assert len(expected) > 100
        is_joined = name == "release_0_1_0"
        joined = [40] if is_joined else range(12, 41)
        assert await versions(earlier) == [
            *range(1, 12),
            *joined,
            *(each for each in await versions(store) if each > 40),
        ]
    finally:
        await earlier.close()
    process.assert_audit(earlier_url)


# The money of each table: its key, and the columns that no step may change.
BOOKS = {
    "accounts": "id, user_id, kind, currency, balance",
    "entries": "transfer_id, debit_account, credit_account, amount",
    "holds": "id, user_id, currency, amount, resolved_at, captured",
    "transfers": "id, business_key, created_at",
}
# Tables that the test fills once step 56 has made the last of them.
FILLED_AT = 56
FILLED = {
    "payments": "id, user_id, status, amount, provider_id, closed_at, deposit_id",
    "payment_returns": "id, payment_id, kind, status, amount, held, taken, provider_ref",
    "debts": "id, user_id, amount, paid",
    "receipts": "number, payment_id, seller, tax_name, tax_basis_points",
    "payouts": "id, user_id, currency, amount, rate, usd, fee, state, reason, batch_id",
    "payout_batches": "id, format, payouts, net_usd, outside_id",
}
REFUSED = (
    "UPDATE accounts SET balance = -1 WHERE user_id IS NOT NULL",
    "UPDATE accounts SET user_id = 'nobody' WHERE user_id IS NOT NULL",
    "INSERT INTO accounts (id, kind, currency) VALUES ('x', 'other', 'usd')",
    "UPDATE entries SET amount = amount + 1",
    "DELETE FROM transfers",
    "UPDATE holds SET amount = 0",
)
REFUSED_OF_FILLED = (
    "UPDATE payments SET status = 'paid' WHERE status = 'open'",
    "UPDATE payments SET amount = 0",
    "UPDATE payment_returns SET taken = amount + 1",
    "UPDATE debts SET paid = amount + 1",
    "UPDATE payouts SET amount = amount + 1",
    "UPDATE payouts SET reason = NULL WHERE state = 'failed'",
    "DELETE FROM payouts",
    "UPDATE accounts SET earned = balance + 1 WHERE user_id IS NOT NULL",
)


async def fill_with_money(tx: Transaction) -> None:
    """Add a payment and a payout in each state, of the first user."""
    names = {"u": await tx.one(str, "SELECT MIN(user_id) FROM accounts WHERE user_id IS NOT NULL")}
    names["t"] = await tx.one(str, "SELECT MIN(id) FROM transfers")
    payment = """
        INSERT INTO payments (id, user_id, provider, status, amount, provider_id, created_at,
            closed_at, deposit_id) VALUES (:id, :u, 'stripe', :status, 20000000, :id, 1, :end, :t)
    """
    for status in ("open", "paid", "expired", "failed", "doubtful"):
        of = {"id": status, "status": status, "end": None if status == "open" else 2}
        deposit = names["t"] if status == "paid" else None
        await tx.run(payment, **of, u=names["u"], t=deposit)
    for status, end in (("pending", None), ("done", 3), ("void", 3)):
        await tx.run(
            """
            INSERT INTO payment_returns (id, payment_id, deposit_id, user_id, kind, status, amount,
                held, taken, provider_ref, created_at, closed_at)
            VALUES (:id, 'paid', :t, :u, 'dispute', :id, 30000, 20000, 10000, :id, 2, :end)
            """,
            id=status,
            end=end,
            **names,
        )
    for statement in (
        "INSERT INTO debts VALUES ('done', :u, 10000, 7, 4)",
        "INSERT INTO receipts VALUES (1, 'paid', 2, 'Example', 'VAT', 2000)",
        """
        INSERT INTO payout_methods (id, user_id, kind, sealed, shown, created_at, usable_at)
        VALUES ('m', :u, 'bank', 'x', 'DE', 1, 2)
        """,
        """
        INSERT INTO payout_batches (id, format, payouts, net_usd, created_at, outside_id)
        VALUES ('b', 'paypal', 3, 29, 5, 'o')
        """,
    ):
        await tx.run(statement, **({"u": names["u"]} if ":u" in statement else {}))
    for state in ("requested", "cancelled", "approved", "rejected", "sent", "paid", "failed"):
        is_sent = state in ("sent", "paid", "failed")
        await tx.run(
            """
            INSERT INTO payouts (id, user_id, method_id, currency, amount, rate, usd, fee,
                fee_amount, state, reason, requested_at, decide_by, sent_at, ended_at, batch_id)
            VALUES (:state, :u, 'm', 'credit', 1000, 10000, 10, 1, 100, :state, :reason, 3, 4,
                :sent_at, :ended_at, :batch)
            """,
            u=names["u"],
            state=state,
            reason="x" if state in ("rejected", "failed") else None,
            sent_at=5 if is_sent else None,
            ended_at=6 if state in ("cancelled", "rejected", "paid", "failed") else None,
            batch="b" if is_sent else None,
        )
    account, house = f"user:{names['u']}:available:credit", "house:rewards:credit"
    for kind in ("capture", "award", "release", "hold"):
        debit, credit = (account, house) if kind == "hold" else (house, account)
        earned = -10 if kind == "hold" else 10
        await tx.run(
            """
            INSERT INTO transfers (id, business_key, kind, reference, created_at)
            VALUES (:id, :id, :id, 'x', 7)
            """,
            id=kind,
        )
        for line in range(2):
            await tx.run(
                "INSERT INTO entries VALUES (:id, :line, 'credit', :debit, :credit, 10, :earned)",
                id=kind,
                line=line,
                debit=debit,
                credit=credit,
                earned=earned,
            )


async def earned_lines(tx: Transaction) -> list[tuple[str, int, str]]:
    """Return the lines of earnings."""
    return await tx.all(
        lambda *row: (str(row[0]).rpartition(":")[0][-9:], row[1], row[2]),
        "SELECT account, is_back, transfer_id FROM earned_lines ORDER BY transfer_id",
    )


async def books(tx: Transaction, tables: dict[str, str]) -> set[tuple[object, ...]]:
    """Return each row of the money in some tables."""
    found = set()
    for table, columns in tables.items():
        rows = await tx.all(lambda *row: row, f"SELECT {columns} FROM {table}")
        assert rows, table
        found |= {(table, *row) for row in rows}
    return found


async def test_each_step_keeps_the_money_of_a_filled_database_and_its_constraints(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await restore(empty_url, "release_0_1_0")
    steps = migrate.migrations(engine_of(empty_url))
    before: set[tuple[object, ...]] = set()
    tables, refused = BOOKS, REFUSED

    async def change(tx: Transaction, statement: str) -> None:
        await tx.run(statement)

    for count in range(RELEASED, len(steps) + 1):
        with monkeypatch.context() as patched:
            patched.setattr(migrate, "migrations", lambda engine, count=count: steps[:count])
            store = await open_store(empty_url)
        try:
            after = await store.read(books, tables)
            assert before <= after, steps[count - 1]
            if steps[count - 1].version == FILLED_AT:
                tables, refused = {**BOOKS, **FILLED}, (*REFUSED, *REFUSED_OF_FILLED)
                await store.write(fill_with_money)
                after = await store.read(books, tables)
            for statement in refused:
                with pytest.raises(ConstraintError):
                    await store.write(change, statement)
            assert await store.read(books, tables) == after
            if count == len(steps):
                lines = await store.read(earned_lines)
        finally:
            await store.close()
        before = after
    assert ("payouts", "paid") in {row[:2] for row in before}
    assert lines == [
        ("available", 0, "award"),
        ("available", 0, "capture"),
        ("available", 1, "release"),
    ]


async def test_a_database_with_benchmarks_of_devices_loses_them_and_nothing_else(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [step for step in migrate.migrations(engine_of(empty_url)) if step.version <= 41]
    with monkeypatch.context() as patched:
        before = await opened_with(patched, empty_url, steps)
        patched.setattr(migrate, "migrations", lambda engine: steps)
        store = await open_store(empty_url)

    async def fill(tx: Transaction) -> None:
        await insert_user(tx, "u")
        await tx.run(
            """
            INSERT INTO devices (id, user_id, token_hash, name, hostname, device_type, created_at)
            VALUES ('d', 'u', '', 'rig', 'rig', 'server', 1)
            """
        )
        await tx.run("INSERT INTO device_benchmarks VALUES ('d', 1, 2, 3, 4, 1, 2)")

    async def devices(tx: Transaction) -> list[str]:
        return await tx.all(str, "SELECT id FROM devices")

    assert any("device_benchmarks" in line for line in before)
    await store.write(fill)
    await store.close()
    store = await open_store(empty_url)
    try:
        assert await store.read(devices) == ["d"]
        assert not any("benchmark" in line for line in await schema(store, empty_url))
    finally:
        await store.close()
    process.assert_audit(empty_url)


@pytest.mark.parametrize("version", [12, 39])
async def test_a_database_between_the_joined_steps_is_left_alone(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    steps = [step for step in migrate.migrations(engine_of(empty_url)) if step.version <= RELEASED]
    steps.append(Migration(version, "one", ()))
    with monkeypatch.context() as patched:
        before = await opened_with(patched, empty_url, steps)
    with pytest.raises(CannotOpenError, match=f"schema version {version}, which no release"):
        await open_store(empty_url)
    assert await opened_with(monkeypatch, empty_url, steps) == before


async def test_a_running_job_of_an_earlier_database_runs_on_and_is_paid_as_agreed(
    empty_url: str,
) -> None:
    await restore(empty_url, "release_0_1_0")
    store = await open_store(empty_url)
    clock = Clock()
    clock.now += 3_600  # of two hours
    market = Market(store, clock)

    async def read(tx: Transaction) -> dict[str, tuple[str, str]]:
        sql = "SELECT title, id, user_id FROM jobs WHERE deploy_id IS NULL"
        return dict(await tx.all(lambda title, *rest: (title, rest), sql))

    try:
        jobs = await store.read(read)
        for title, paid in (("runs", 5_000_000), ("waits", 0)):
            job_id, buyer = jobs[title]
            await market.jobs.cancel(buyer, job_id)
            assert (await market.jobs.find(buyer, job_id)).paid == paid
        assert (await audit_ledger(store)).passed
    finally:
        market.passwords.close()
        await store.close()


async def test_usage_before_it_was_dated_is_known_from_the_first_day(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session that goes on, under an open lease, and one that is over; both have used some."""
    steps = [step for step in migrate.migrations(engine_of(empty_url)) if step.version <= RELEASED]
    with monkeypatch.context() as patched:
        await opened_with(patched, empty_url, steps)
        store = await open_store(empty_url)

    async def fill(tx: Transaction) -> None:
        await insert_user(tx, "u")
        for name, used, status in (
            ("on", 70, "active"),
            ("over", 30, "ended"),
            ("new", 0, "ended"),
        ):
            await tx.run(
                """
                INSERT INTO bandwidth_sessions (id, user_id, username, password_hash, quota_bytes,
                    bytes_used, bytes_leased, price_per_gb, status, created_at, expires_at)
                VALUES (:name, 'u', :name, '', 100, :used, :left, 7, :status, 7300, 1)
                """,
                name=name,
                used=used,
                left=100 - used if status == "active" else 0,
                status=status,
            )
            await tx.run(
                """
                INSERT INTO bandwidth_leases (id, session_id, granted_bytes, used_bytes, closed_at)
                VALUES (:name, :name, 100, :used, :closed_at)
                """,
                name=name,
                used=used,
                closed_at=None if status == "active" else 1,
            )

    async def rows(tx: Transaction) -> list[tuple[object, ...]]:
        sql = """
            SELECT session_id, begins_at, span_seconds, used_bytes FROM session_usage
            ORDER BY session_id, begins_at
        """
        return await tx.all(lambda *row: row, sql)

    await store.write(fill)
    await store.close()
    store = await open_store(empty_url)
    market = Market(store, Clock())
    try:
        assert await store.read(rows) == [("on", 7_200, 0, 70), ("over", 7_200, 0, 30)]
        await market.leases.report([Usage("on", "on", 75)])
        hour = market.clock.seconds() // 3_600 * 3_600
        assert await store.read(rows) == [
            ("on", 7_200, 0, 70),
            ("on", hour, 3_600, 5),
            ("over", 7_200, 0, 30),
        ]
        assert await store.read(usage.mismatches) == []
    finally:
        market.passwords.close()
        await store.close()


async def test_a_step_that_fails_leaves_the_database_as_it_was(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = migrate.migrations(engine_of(empty_url))
    before = await opened_with(monkeypatch, empty_url, steps)
    broken = Migration(
        9001, "broken", ("CREATE TABLE half (id TEXT); CREATE TABLE users (id TEXT);",)
    )
    with pytest.raises(CannotOpenError):
        await opened_with(monkeypatch, empty_url, [*steps, broken])
    assert await opened_with(monkeypatch, empty_url, steps) == before


async def test_a_database_that_is_up_to_date_has_no_step_read(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    read_text = Path.read_text

    def noted(self: Path, **how: str) -> str:
        read.append(self.name)
        return read_text(self, **how)

    monkeypatch.setattr(Path, "read_text", noted)
    steps = len(migrate.migrations(engine_of(empty_url)))
    for expected in (steps, 0):
        migrate.migrations.cache_clear()  # as in a new process
        store = await open_store(empty_url)
        await store.close()
        assert len({name[:4] for name in read if name.endswith(".sql")}) == expected
        read.clear()


async def test_ten_that_start_at_once_migrate_once(empty_url: str) -> None:
    stores = await asyncio.gather(*(open_store(empty_url, pool_size=1) for _ in range(10)))
    expected = [step.version for step in migrate.migrations(engine_of(empty_url))]
    for store in stores:
        assert await versions(store) == expected
        await store.close()


async def test_a_database_from_a_newer_program_is_left_alone(empty_url: str) -> None:
    store = await open_store(empty_url)

    async def grow(tx: Transaction) -> None:
        await tx.run("INSERT INTO schema_versions (version, name) VALUES (9999, 'future')")

    await store.write(grow)
    await store.close()
    with pytest.raises(CannotOpenError, match="schema version 9999"):
        await open_store(empty_url)


READABLE = f"-- readable from {migrate.newest('sqlite')}\nCREATE TABLE later (id TEXT);"


async def test_an_earlier_program_runs_after_steps_that_permit_it(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    steps = migrate.migrations(engine_of(empty_url))
    additive = Migration(9001, "additive", (READABLE,))
    deeper = Migration(9002, "deeper", ("ALTER TABLE later ADD COLUMN size BIGINT;",))
    await opened_with(monkeypatch, empty_url, [*steps, additive])
    newer = await opened_with(monkeypatch, empty_url, [*steps, additive])
    assert await opened_with(monkeypatch, empty_url, steps) == newer
    assert "schema version 9001, which a newer program made" in caplog.text

    # A step that permits only the program of the additive one, and then names its backup.
    await opened_with(monkeypatch, empty_url, [*steps, additive, deeper])
    with pytest.raises(CannotOpenError, match="knows only 9001") as refused:
        await opened_with(monkeypatch, empty_url, [*steps, additive])
    assert str(refused.value).endswith("from before the upgrade")
    monkeypatch.setattr(migrate, "migrations", lambda engine: [*steps, additive, deeper])
    store = await open_store(empty_url)
    for version, place in ((9002, "/after"), (9001, "/second"), (9001, "/before"), (3, "/old")):
        await store.write(note_backup, version, place, 1, ["/second"])
    await store.close()
    with pytest.raises(CannotOpenError, match=r"from before the upgrade: /before$"):
        await opened_with(monkeypatch, empty_url, [*steps, additive])
    with pytest.raises(CannotOpenError, match=r"from before the upgrade: /old$"):
        await opened_with(monkeypatch, empty_url, steps)


def test_numbers_follow_each_other_and_both_engines_have_the_same() -> None:
    sqlite = [(step.version, step.name) for step in migrate.migrations("sqlite")]
    assert sqlite == [(step.version, step.name) for step in migrate.migrations("postgres")]
    numbers = [version for version, _ in sqlite]
    assert numbers == [*range(1, RELEASED + 1), *range(40, 40 + len(numbers) - RELEASED)]
