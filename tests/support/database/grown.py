"""A market of any size, written by a few statements straight into a database.

A market of `size` has about `size` transfers. A tenth of that is open work, three tenths are work
that is done; half of either are sessions, half jobs. There is a user with a device for every
hundred transfers, and one more, the buyer, with some hundreds of open sessions and jobs. Each
device is an exit, and all bytes of sessions went through another user's.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import asyncpg

BUYERS_WORK = 400
NOW = 1_800_000_000
# Sorts before every identifier, as the cursor of a list's last part does.
OLDEST = "01900000-0000-7000-8000-000000000000"
_DAY = 86_400
# Settings of the connection that fills a PostgreSQL: memory for joins and indexes, one process.
_SETTINGS = {
    "work_mem": "256MB",
    "maintenance_work_mem": "512MB",
    "max_parallel_maintenance_workers": "0",
    "synchronous_commit": "off",
}


def _id(kind: int, number: str) -> str:
    """Return SQL for a UUID that sorts by its number."""
    digits = f"SUBSTR(CAST(1000000000000 + {number} AS TEXT), 2)"
    return f"('01900000-0000-7000-8{kind:03}-' || {digits})"


@dataclass(frozen=True)
class Grown:
    """How much there is, and how much of the work is the buyer's."""

    size: int
    buyers_work: int = BUYERS_WORK

    @property
    def users(self) -> int:
        return max(self.size // 100, 1)

    @property
    def work(self) -> int:
        return self.size * 39 // 100 + self.buyers_work

    @property
    def done(self) -> int:
        return self.size * 29 // 100

    @property
    def buyer_id(self) -> str:
        """The identifier of the buyer, the last user."""
        return f"01900000-0000-7000-8001-{self.users + 1:012}"

    @property
    def buyers_login_id(self) -> str:
        """A login session of the buyer."""
        return f"01900000-0000-7000-8013-{self.users + 1:012}"


def _statements(grown: Grown) -> Iterator[str]:
    """Yield the statements that fill an empty database; both engines accept them."""
    yield from _people(grown)
    yield from _work(grown)
    yield from _transfers()
    yield from _exits()
    yield from _rest(grown)


def _people(grown: Grown) -> Iterator[str]:
    yield f"""
        CREATE TEMPORARY TABLE people AS
        WITH RECURSIVE numbers (n) AS (
            SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n <= {grown.users}
        )
        SELECT n, {_id(1, "n")} AS user_id, {_id(2, "n")} AS device_id FROM numbers
    """
    yield f"""
        INSERT INTO users (id, username, username_key, email, email_key, password_hash, created_at)
        SELECT user_id, 'user' || n, 'user' || n, 'user' || n || '@example.com',
            'user' || n || '@example.com', 'none', {NOW} FROM people
    """
    for kind in ("available", "held"):
        for currency in ("usd", "credit"):
            yield f"""
                INSERT INTO accounts (id, user_id, kind, currency)
                SELECT 'user:' || user_id || ':{kind}:{currency}', user_id, '{kind}', '{currency}'
                FROM people
            """
    yield """
        INSERT INTO accounts (id, user_id, kind, currency)
        SELECT 'user:' || user_id || ':pending:usd', user_id, 'pending', 'usd' FROM people
    """
    yield f"""
        INSERT INTO devices
            (id, user_id, token_hash, name, hostname, device_type, created_at, last_heartbeat_at)
        SELECT device_id, user_id, 'hash ' || n, 'rig', 'rig', 'server', {NOW}, {NOW} FROM people
    """


def _work(grown: Grown) -> Iterator[str]:
    yield f"""
        CREATE TEMPORARY TABLE work AS
        WITH RECURSIVE numbers (n) AS (
            SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {grown.work}
        )
        SELECT w.n, w.n % 2 AS is_session, w.n <= {grown.done} AS is_done,
            CASE WHEN w.n % 2 = 1 THEN 'usd' ELSE 'credit' END AS currency,
            CASE WHEN w.n % 2 = 1 THEN 'bandwidth:' ELSE 'job:' END || {_id(3, "w.n")} AS hold_id,
            CASE WHEN w.n % 4 = 2 AND w.n <= {grown.done} THEN 1 ELSE 0 END AS is_reviewed,
            {_id(3, "w.n")} AS id, p.user_id, p.device_id, {NOW} - {_DAY} + w.n / 1000 AS began_at,
            o.user_id AS owner_id, o.device_id AS exit_id
        FROM numbers AS w JOIN people AS p ON p.n = CASE
            WHEN w.n > {grown.work - grown.buyers_work} THEN {grown.users} + 1
            ELSE 1 + w.n / 2 % {grown.users} END
        JOIN people AS o ON o.n = CASE
            WHEN p.n > {grown.users} THEN 1 + w.n / 2 % {grown.users}
            WHEN w.n <= {BUYERS_WORK} THEN {grown.users} + 1
            ELSE 1 + p.n % {grown.users} END
    """
    yield """
        INSERT INTO holds (id, user_id, currency, amount, captured, created_at, resolved_at)
        SELECT hold_id, user_id, currency, 1000, CASE WHEN is_done THEN 500 END, began_at,
            CASE WHEN is_done THEN began_at + 60 END FROM work
    """
    yield f"""
        INSERT INTO bandwidth_sessions (id, user_id, username, password_hash, quota_bytes,
            bytes_used, price_per_gb, status, created_at, expires_at, ended_at)
        SELECT id, user_id, 'session' || n, 'none', 1000000, 500000, 1000000,
            CASE WHEN is_done THEN 'ended' ELSE 'active' END, began_at, {NOW} + 30 * {_DAY} + n,
            CASE WHEN is_done THEN began_at + 60 END
        FROM work WHERE is_session = 1
    """
    yield """
        INSERT INTO session_usage
            (user_id, begins_at, session_id, span_seconds, used_bytes, connections)
        SELECT user_id, began_at - began_at % 3600, id, 3600, 500000, 1
        FROM work WHERE is_session = 1
    """
    yield """
        INSERT INTO session_refusals
            (user_id, begins_at, session_id, span_seconds, reason, refusals)
        SELECT user_id, began_at - began_at % 3600, id, 3600, 'not_allowed', 1
        FROM work WHERE is_session = 1 AND n % 7 = 0
    """
    yield f"""
        INSERT INTO bandwidth_leases
            (id, session_id, granted_bytes, used_bytes, exit_bytes, closed_at)
        SELECT {_id(4, "n")}, id, 1000000, 500000, 500000, began_at + 60
        FROM work WHERE is_session = 1
    """
    yield f"""
        INSERT INTO bandwidth_leases (id, session_id, granted_bytes, used_bytes)
        SELECT {_id(14, "n")}, id, 0, 0 FROM work WHERE is_session = 1 AND NOT is_done
    """
    yield """
        INSERT INTO session_addresses (address, slot, session_id)
        SELECT 'address ' || n, 0, id FROM work
        WHERE is_session = 1 AND NOT is_done AND n % 5 = 0
    """
    yield f"""
        INSERT INTO deploys (id, user_id, job_name, job_type, gpu_model, gpu_count, duration_hrs,
            replicas, currency, price, created_at)
        SELECT {_id(5, "n")}, user_id, 'deploy', 'Docker', 'a100', 1, 1, 1, 'credit', 1000, began_at
        FROM work WHERE n % 4 = 0
    """
    yield f"""
        INSERT INTO jobs (id, user_id, title, job_type, price_credit, duration_hrs, description,
            requirements, status, attempts, device_id, created_at, accepted_at, finished_at,
            earned, result, deploy_id, currency, price_held)
        SELECT id, user_id, 'job ' || n, CASE WHEN n % 4 = 0 THEN 'docker' ELSE 'script' END,
            1000, 1, 'What is to be done.', 'GPU with 24 GB',
            CASE WHEN is_done THEN 'completed' WHEN n % 8 = 0 THEN 'running' ELSE 'waiting' END,
            CASE WHEN is_done OR n % 8 = 0 THEN 1 ELSE 0 END,
            CASE WHEN is_done OR n % 8 = 0 THEN device_id END, began_at,
            CASE WHEN is_done OR n % 8 = 0 THEN began_at END,
            CASE WHEN is_done THEN began_at + 60 END, CASE WHEN is_done THEN 450 ELSE 0 END,
            CASE WHEN is_done THEN 'done' END,
            CASE WHEN n % 4 = 0 THEN {_id(5, "n")} END, 'credit', 1000
        FROM work WHERE is_session = 0
    """
    yield """
        INSERT INTO deploy_replicas (job_id, deploy_id, number, revision, seconds)
        SELECT id, deploy_id, 1, 1, 3600 FROM jobs WHERE deploy_id IS NOT NULL
    """
    yield """
        INSERT INTO deploy_rollouts (deploy_id, user_id, revision, desired, strategy, state,
            replica_price, replica_credit, progressed_at)
        SELECT d.id, d.user_id, 1, 1, '{}', CASE WHEN j.status = 'running' THEN 'available'
            ELSE 'over' END, 1000, 1000, d.created_at
        FROM deploys AS d JOIN jobs AS j ON j.deploy_id = d.id
    """
    yield """
        INSERT INTO deploy_revisions (deploy_id, user_id, revision, template, size_bytes, cause,
            created_at, state)
        SELECT id, user_id, 1, '{"image": "web:1"}', 20, 'created', created_at, 'available'
        FROM deploys
    """
    yield """
        INSERT INTO job_attempts (job_id, attempt, device_id, started_at, ended_at, outcome)
        SELECT id, 1, device_id, accepted_at, finished_at,
            CASE WHEN status = 'completed' THEN 'completed' END
        FROM jobs WHERE attempts = 1
    """
    yield """
        INSERT INTO artifact_contents (id, digest, size_bytes, is_checked)
        SELECT id, id, 100, 1 FROM work WHERE is_session = 0
    """
    # The outputs of the jobs that are over, and the inputs of the open ones.
    yield f"""
        INSERT INTO artifacts (id, user_id, job_id, attempt, kind, name, digest, size_bytes,
            reference, content_id, created_at, whole_at, expires_at)
        SELECT {_id(30, "n")}, user_id, CASE WHEN is_done THEN id END, CASE WHEN is_done THEN 1 END,
            CASE WHEN is_done THEN 'output' ELSE 'input' END, 'x', id, 100, '', id, began_at,
            began_at, CASE WHEN is_done THEN {NOW} + {_DAY} + n END
        FROM work WHERE is_session = 0
    """
    yield f"""
        INSERT INTO job_inputs (job_id, artifact_id)
        SELECT id, {_id(30, "n")} FROM work WHERE is_session = 0 AND NOT is_done
    """
    yield """
        INSERT INTO job_logs (job_id, attempt, user_id, began_at, ended_at, kept_bytes)
        SELECT a.job_id, 1, j.user_id, a.started_at,
            a.ended_at, 0
        FROM job_attempts AS a JOIN jobs AS j ON j.id = a.job_id
    """
    yield "INSERT INTO user_logs (user_id, kept_bytes) SELECT DISTINCT user_id, 0 FROM job_logs"
    yield """
        INSERT INTO job_specs (job_id, payload, timeout_seconds)
        SELECT id, '{}', 3600 FROM work WHERE n % 4 = 2
    """
    yield f"""
        INSERT INTO job_reviews (job_id, attempt, user_id, buyer_id, earned, currency, price,
            created_at, review_until, state, resolved_at)
        SELECT id, 1, user_id, user_id, 450, 'credit', 500, began_at, {NOW} + n, 'confirmed',
            began_at + 60
        FROM work WHERE is_reviewed = 1
    """
    yield """
        INSERT INTO copy_groups (id, copies, compare, review_seconds, state, result_at, decided_at)
        SELECT id, 2, 'bytes', 3600, CASE WHEN is_done THEN 'undecided' ELSE 'open' END,
            began_at, CASE WHEN is_done THEN began_at END
        FROM work WHERE n % 4 = 2 AND is_session = 0
    """
    yield "INSERT INTO job_copies (job_id, group_id, number) SELECT id, id, 1 FROM copy_groups"
    yield """
        INSERT INTO copy_networks (job_id, attempt, network)
        SELECT a.job_id, a.attempt, '8.8.8.0/24' FROM job_attempts AS a
        JOIN copy_groups AS g ON g.id = a.job_id
    """
    yield """
        INSERT INTO holds (id, user_id, currency, amount, captured, created_at, resolved_at)
        SELECT 'review:' || hold_id, user_id, 'credit', 450, 450, began_at, began_at + 60
        FROM work WHERE is_reviewed = 1
    """


def _transfers() -> Iterator[str]:
    """Yield the transfers of the work, and their deposits; the entries set the balances."""
    for kind, number, only in (
        ("hold", 6, "n > 0"),
        ("capture", 7, "is_done"),
        ("release", 8, "is_done"),
    ):
        yield f"""
            INSERT INTO transfers (id, business_key, kind, reference, created_at)
            SELECT {_id(number, "n")}, hold_id || ':{kind}', '{kind}', hold_id, began_at
            FROM work WHERE {only}
        """
    for kind, number in (("hold", 20), ("capture", 21), ("fee", 22)):
        yield f"""
            INSERT INTO transfers (id, business_key, kind, reference, created_at)
            SELECT {_id(number, "n")}, 'review:' || hold_id || ':{kind}', '{kind}',
                'review:' || hold_id, began_at
            FROM work WHERE is_reviewed = 1
        """
    available, held = (
        f"'user:' || user_id || ':{kind}:' || currency" for kind in ("available", "held")
    )
    pending = "'user:' || owner_id || ':pending:usd'"
    for number, line, debit, credit, amount, only in (
        (6, 0, available, held, "1000", "n > 0"),
        (
            7,
            0,
            held,
            "'house:revenue:' || currency",
            "500 - 300 * is_session - 50 * is_reviewed",
            "is_done",
        ),
        (7, 2, held, "'house:review:credit'", "50", "is_reviewed = 1"),
        (20, 0, "'house:revenue:credit'", held, "450", "is_reviewed = 1"),
        (21, 0, held, available, "450", "is_reviewed = 1"),
        (22, 0, "'house:review:credit'", "'house:revenue:credit'", "50", "is_reviewed = 1"),
        (7, 1, held, pending, "300", "is_done AND is_session = 1"),
        (8, 0, held, available, "500", "is_done"),
    ):
        yield f"""
            INSERT INTO entries (transfer_id, line, currency, debit_account, credit_account, amount)
            SELECT {_id(number, "n")}, {line}, currency, {debit}, {credit}, {amount}
            FROM work WHERE {only}
        """
    for number, currency in ((9, "usd"), (10, "credit")):
        yield f"""
            INSERT INTO transfers (id, business_key, kind, reference, created_at)
            SELECT {_id(number, "n")}, 'deposit:' || n || ':{currency}', 'deposit', '' || n,
                {NOW} - {_DAY}
            FROM people
        """
        yield f"""
            INSERT INTO entries (transfer_id, line, currency, debit_account, credit_account, amount)
            SELECT {_id(number, "n")}, 0, '{currency}', 'house:deposits:{currency}',
                'user:' || user_id || ':available:{currency}', 1000000000000 FROM people
        """


def _exits() -> Iterator[str]:
    yield f"""
        INSERT INTO exits (device_id, user_id, terms_hash, consented_at, connections,
            bytes_per_second, bytes_per_day, ports, min_price_per_gb, country)
        SELECT device_id, user_id, 'hash', {NOW}, 16, 0, 0, '443', 0, 'xx' FROM people
    """
    yield f"""
        INSERT INTO exit_usage (lease_id, device_id, session_id, used_bytes, earned)
        SELECT {_id(4, "n")}, exit_id, id, 500000, 300 FROM work WHERE is_session = 1
    """
    yield f"""
        INSERT INTO exit_days (device_id, day, used_bytes, earned)
        SELECT exit_id, began_at / {_DAY}, 500000 * COUNT(*), 300 * COUNT(*) FROM work
        WHERE is_session = 1 GROUP BY exit_id, began_at / {_DAY}
    """
    yield """
        INSERT INTO exit_earnings (session_id, device_id, user_id, used_bytes, amount, posted_at)
        SELECT id, exit_id, owner_id, 500000, 300, began_at + 60
        FROM work WHERE is_session = 1 AND is_done
    """


def _rest(grown: Grown) -> Iterator[str]:
    yield f"""
        INSERT INTO transfers (id, business_key, kind, reference, created_at)
        SELECT {_id(11, "n")}, 'goodness:' || {_id(12, "n")}, 'reward',
            'photo:' || {_id(12, "n")}, {NOW} - {_DAY}
        FROM people
    """
    yield f"""
        INSERT INTO entries (transfer_id, line, currency, debit_account, credit_account, amount)
        SELECT {_id(11, "n")}, 0, 'credit', 'house:rewards:credit',
            'user:' || user_id || ':available:credit', 1000 FROM people
    """
    yield f"""
        INSERT INTO goodness_rewards
            (id, user_id, day, category, confidence, model, amount, file_hash, created_at)
        SELECT {_id(12, "n")}, user_id, 20000 + n / 100, 'helping', 1, 'model', 1000, 'file ' || n,
            {NOW} - {_DAY} FROM people
    """
    yield f"""
        INSERT INTO login_sessions (id, user_id, created_at, expires_at)
        SELECT {_id(13, "n")}, user_id, {NOW}, {NOW} + 30 * {_DAY} FROM people
    """
    # Forty events of each user.
    yield f"""
        INSERT INTO events (id, user_id, type, subject_id, data, created_at)
        WITH RECURSIVE numbers (m) AS (SELECT 1 UNION ALL SELECT m + 1 FROM numbers WHERE m < 40)
        SELECT {_id(15, "n * 100 + m")}, user_id, 'job.created', NULL, '{{}}', {NOW}
        FROM people, numbers
    """
    # A key of each user that expires soon, one that was revoked, and the spending of the first one.
    yield f"""
        INSERT INTO api_keys (id, user_id, name, key_hash, prefix, scopes, allow_ips, limit_period,
            purse_id, created_by, created_at, expires_at, revoked_at)
        SELECT {_id(16, "n * 2")}, user_id, 'key', 'key ' || n, 'pxd_', 'usage:read', '', 'day',
            {_id(16, "n * 2")}, 'login', {NOW} - {_DAY}, {NOW} + {_DAY}, NULL FROM people
        UNION ALL
        SELECT {_id(16, "n * 2 + 1")}, user_id, 'old', 'old ' || n, 'pxd_', 'usage:read', '', 'day',
            {_id(16, "n * 2 + 1")}, 'login', {NOW} - {_DAY}, NULL, {NOW} FROM people
    """
    yield f"""
        INSERT INTO key_spends (purse_id, currency, period, begins_at, spent)
        SELECT id, 'usd', 'day', {NOW} - 100 * {_DAY}, 1 FROM api_keys
        UNION ALL SELECT id, 'usd', 'lifetime', 0, 1 FROM api_keys
    """
    yield f"""
        INSERT INTO top_ups
            (user_id, state, threshold, amount, month_ceiling, next_at, changed_at)
        SELECT user_id, 'on', 1, 1, 1, {NOW} - {_DAY}, {NOW} - {_DAY} FROM people
    """
    yield f"""
        INSERT INTO mail_tokens (token_hash, user_id, purpose, created_at, expires_at)
        SELECT 'token ' || n, user_id, 'verify', {NOW}, {NOW} + {_DAY} FROM people
    """
    yield f"""
        INSERT INTO idempotency_keys
            (user_id, idempotency_key, request_hash, sealed_answer, created_at)
        SELECT user_id, 'key', 'hash', 'answer', {NOW} FROM people
    """
    yield f"""
        INSERT INTO referrals (user_id, referrer_id, referrer_bonus, referred_bonus, created_at)
        SELECT p.user_id, {_id(1, "(1 + p.n / 20)")}, 0, 0, {NOW} FROM people AS p WHERE p.n > 20
    """
    yield """
        UPDATE accounts SET balance = sums.amount
        FROM (
            SELECT account, SUM(amount) AS amount FROM (
                SELECT credit_account AS account, amount FROM entries
                UNION ALL SELECT debit_account, -amount FROM entries
            ) AS moved GROUP BY account
        ) AS sums
        WHERE sums.account = accounts.id
    """


async def grow(url: str, size: int, buyers_work: int = BUYERS_WORK) -> Grown:
    """Fill a new database of the present schema with a market of a size, and analyse it."""
    grown = Grown(size, buyers_work)
    if url.startswith("sqlite:///"):
        _grow_sqlite(url.removeprefix("sqlite:///"), grown)
    else:
        await _grow_postgres(url, grown)
    return grown


def _grow_sqlite(path: str, grown: Grown) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -262144")
        # Each page is written once, without a log. It fails while another connection is open.
        connection.execute("PRAGMA journal_mode = OFF")
        put_aside = connection.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
            " OR name IN ('entries_move_balances', 'exit_usage_added') ORDER BY rowid"
        ).fetchall()
        connection.execute("BEGIN")
        for kind, name, _ in put_aside:
            connection.execute(f"DROP {kind} {name}")
        for statement in _statements(grown):
            connection.execute(statement)
        # An index that is made of all rows takes a fraction of the time of one that grew by them.
        for _, _, sql in put_aside:
            connection.execute(sql)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")


async def _grow_postgres(url: str, grown: Grown) -> None:
    connection = await asyncpg.connect(url)
    try:
        for setting, value in _SETTINGS.items():
            await connection.execute(f"SET {setting} = '{value}'")
        async with connection.transaction():
            # Neither triggers nor references are looked at: the rows are right as they are.
            await connection.execute("SET LOCAL session_replication_role = 'replica'")
            # Nor does an index take the rows one by one: REINDEX makes all of them afterwards, and
            # switches them on again.
            await connection.execute("""
                UPDATE pg_index SET indisready = false, indisvalid = false
                WHERE indrelid IN (
                    SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace
                )
            """)
            for statement in _statements(grown):
                await connection.execute(statement)
        await connection.execute("REINDEX SCHEMA public")
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()
