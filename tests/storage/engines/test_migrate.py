"""Migrations: any earlier database reaches the schema of a fresh one, once, whoever starts."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.base.clock import Clock
from support.market.market import Market

from market.bandwidth.leases import Usage
from market.money import ledger
from market.money.audit import audit_ledger
from market.money.money import Currency
from storage.accounts import referrals
from storage.bandwidth import usage
from storage.engines import migrate
from storage.engines.errors import CannotOpenError, ConstraintError, StoreError
from storage.engines.migrate import Migration
from storage.engines.open import open_store
from storage.engines.store import Store, Transaction
from storage.jobs import reviews
from storage.money.ledger import HoldRow

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
    assert len({tuple(each) for each in grown}) == len(steps)
    assert any("later" in line for line in grown[-1])


async def test_what_a_deploy_runs_leaves_the_descriptions_of_its_jobs(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [step for step in migrate.migrations(engine_of(empty_url)) if step.version < 13]
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


async def test_why_a_job_failed_is_told_apart_from_what_came_of_it(
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
    earlier = [step for step in steps if step.version < 14]
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


async def test_users_of_an_earlier_database_may_have_what_is_pending(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = migrate.migrations(engine_of(empty_url))
    with monkeypatch.context() as patched:
        await opened_with(patched, empty_url, [step for step in steps if step.version < 16])
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


async def test_what_runs_in_an_earlier_database_runs_on_and_is_paid_as_it_was_agreed(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = migrate.migrations(engine_of(empty_url))
    with monkeypatch.context() as patched:
        await opened_with(patched, empty_url, [step for step in steps if step.version < 20])
        store = await open_store(empty_url)
    clock = Clock()
    accepted_at = clock.seconds() - 3_600

    async def fill(tx: Transaction) -> None:
        await insert_user(tx, "buyer", "worker")
        for user in ("buyer", "worker"):
            await ledger.open_accounts(tx, user)
        await tx.run(
            """
            INSERT INTO devices (id, user_id, token_hash, name, device_type, hostname, gpu_name,
                created_at)
            VALUES ('device', 'worker', 'hash', '', 'desktop', '', '', 1)
            """
        )
        for job_id, status, device in (("runs", "running", "device"), ("waits", "waiting", None)):
            await tx.run(
                """
                INSERT INTO jobs (id, user_id, title, job_type, price_credit, duration_hrs,
                    description, requirements, status, created_at, attempts, device_id, accepted_at,
                    currency, price_held)
                VALUES (:id, 'buyer', '', 'script', 1000000, 2, '', '', :status, 1, 1,
                    :device, :accepted_at, 'credit', 1000000)
                """,
                id=job_id,
                status=status,
                device=device,
                accepted_at=accepted_at if device else None,
            )
            await tx.run(
                """
                INSERT INTO job_attempts (job_id, attempt, device_id, started_at, ended_at, outcome)
                VALUES (:id, 1, 'device', :accepted_at, :ended_at, :outcome)
                """,
                id=job_id,
                accepted_at=accepted_at,
                ended_at=None if device else accepted_at,
                outcome=None if device else "lost",
            )
            hold = HoldRow(f"job:{job_id}", "buyer", "credit", 1_000_000, None)
            source = ledger.deposits(Currency.CREDIT)
            await ledger.hold(tx, hold, transfer_id=job_id, now=accepted_at, source=source)

    await store.write(fill)
    await store.close()
    store = await open_store(empty_url)
    market = Market(store, clock)
    try:
        assert (await audit_ledger(store)).passed
        await market.jobs.cancel("buyer", "runs")
        await market.jobs.cancel("buyer", "waits")
        assert (await market.jobs.find("buyer", "runs")).paid == 500_000
        assert (await market.jobs.find("buyer", "waits")).paid == 0
        assert (await audit_ledger(store)).passed
    finally:
        market.passwords.close()
        await store.close()


async def test_reviews_of_an_earlier_database_are_there_and_stay_unchangeable(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [step for step in migrate.migrations(engine_of(empty_url)) if step.version < 24]
    with monkeypatch.context() as patched:
        await opened_with(patched, empty_url, steps)
        store = await open_store(empty_url)

    async def fill(tx: Transaction) -> None:
        await insert_user(tx, "u", "v")
        await tx.run(
            """
            INSERT INTO jobs (id, user_id, title, job_type, price_credit, duration_hrs,
                description, requirements, status, created_at)
            VALUES ('j', 'v', '', 'script', 10, 1, '', '', 'completed', 1)
            """
        )
        await tx.run(
            """
            INSERT INTO job_reviews (job_id, attempt, user_id, buyer_id, earned, currency, price,
                created_at, review_until, state)
            VALUES ('j', 2, 'u', 'v', 9, 'credit', 10, 1, 100, 'held')
            """
        )

    await store.write(fill)
    await store.close()
    store = await open_store(empty_url)
    [row] = await store.read(reviews.of_job, "j")
    assert (row.attempt, row.earned, row.review_until, row.is_draw) == (2, 9, 100, 0)
    for sql in ("UPDATE job_reviews SET earned = 8", "DELETE FROM job_reviews"):
        with pytest.raises(StoreError):
            await store.write(_run, sql)
    await store.close()


async def _run(tx: Transaction, sql: str) -> None:
    await tx.run(sql)


async def test_what_was_used_before_it_was_dated_is_known_from_the_first_day(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session that goes on, under an open lease, and one that is over; both have used some."""
    steps = [step for step in migrate.migrations(engine_of(empty_url)) if step.version < 30]
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


def test_numbers_follow_each_other_and_both_engines_have_the_same(tmp_path: Path) -> None:
    sqlite = [(step.version, step.name) for step in migrate.migrations("sqlite")]
    postgres = [(step.version, step.name) for step in migrate.migrations("postgres")]
    assert sqlite == postgres
    assert [version for version, _ in sqlite] == list(range(1, len(sqlite) + 1))
