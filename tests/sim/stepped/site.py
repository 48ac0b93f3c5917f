"""One database for all trials: the rows of the start, two sides, and the rows of the end."""

import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Self

import asyncpg
from support.base.clock import Clock
from support.market.market import Market
from support.payments.bank import Bank

from market.money.audit import audit_ledger
from market.staff.base.chain import audit_log
from storage.engines.open import open_store
from storage.engines.postgres import PostgresStore
from tests.sim.stepped.store import SteppedStore
from tests.sim.stepped.turns import Order, Turns

SIDES = ("a", "b")
# Units that may meet at once, each with its node.
NODES = {"a": "a", "b": "b", "c": "a"}
# A unit stands still while the other one works, which is slow on a busy machine.
STATEMENT_SECONDS = 60.0
KEPT = "kept"  # the schema with the rows of the start, and the names of the changed tables
# A trigger for each table; it locks nothing, so it changes no meeting.
_NOTING = f"""
DROP SCHEMA IF EXISTS {KEPT} CASCADE;
CREATE SCHEMA {KEPT};
CREATE TABLE {KEPT}.changes (name TEXT NOT NULL);
CREATE FUNCTION {KEPT}.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {KEPT}.changes VALUES (TG_TABLE_NAME);
    RETURN NULL;
END $$
"""
_REFERRING = """
SELECT DISTINCT conrelid::regclass::text AS name FROM pg_constraint
WHERE contype = 'f' AND confrelid = 'public.users'::regclass AND NOT condeferred
"""
VACUUM_EVERY = 200  # trials leave rows behind that every scan would read
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
# The salted hash of the reason that a suspended user reads, in the changes of a row of the log.
SHOWN = re.compile(r'(?<=shown\\":\[null,\\")[0-9a-f]+')
# Drawn by `secrets`, so they differ in each run; a column of this name is left out in every table.
DRAWN = frozenset(
    (
        "password_hash",
        "username",
        "token_hash",
        "key_hash",
        "prefix",
        "device_hash",
        "user_hash",
        "sealed_answer",
        "sealed_content",
        "sealed_payload",
        "sealed_secret",
        "sealed_old_secret",
        "sealed_key",
        "sealed_factor",
        "sealed",
        "code_hash",
        "salt",
        "text_hash",
        "hash",
        "jobs_left",
    )
)
# Facts that no unit may break; each statement returns the rows that break one.
RULES = {
    "leases and use within the quota": (
        "SELECT id FROM bandwidth_sessions WHERE bytes_used + bytes_leased > quota_bytes"
    ),
    "the leased bytes of a session are those of its open leases": (
        """
        SELECT s.id FROM bandwidth_sessions AS s
        LEFT JOIN bandwidth_leases AS l ON l.session_id = s.id AND l.closed_at IS NULL
        GROUP BY s.id, s.bytes_leased
        HAVING s.bytes_leased <> COALESCE(SUM(l.granted_bytes - l.used_bytes), 0)
        """
    ),
    "a session that is over has no open lease": (
        """
        SELECT s.id FROM bandwidth_sessions AS s JOIN bandwidth_leases AS l ON l.session_id = s.id
        WHERE s.status <> 'active' AND l.closed_at IS NULL
        """
    ),
    "a job has one running attempt at most": (
        """
        SELECT job_id FROM job_attempts WHERE ended_at IS NULL
        GROUP BY job_id HAVING COUNT(*) > 1
        """
    ),
    "a job that no device has has no running attempt": (
        """
        SELECT j.id FROM jobs AS j JOIN job_attempts AS a ON a.job_id = j.id
        WHERE a.ended_at IS NULL AND j.status <> 'running'
        """
    ),
    "a job is completed once": (
        """
        SELECT job_id FROM job_attempts WHERE outcome = 'completed'
        GROUP BY job_id HAVING COUNT(*) > 1
        """
    ),
}


class Site:
    """A database with the same rows at the start of each trial.

    Attributes:
        clock: of both sides; it stands still.
        stores: one for each of the units that meet.
    """

    def __init__(
        self, stores: Mapping[str, SteppedStore], monitor: asyncpg.Connection, url: str
    ) -> None:
        self.stores = stores
        self.clock = Clock()
        self.bank = Bank()
        self.url = url
        self._monitor = monitor
        self._tables: dict[str, list[str]] = {}  # the columns of each
        self._start: dict[str, Counter[str]] = {}
        self._restored = 0
        self._known: frozenset[str] = frozenset()

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Self]:
        """Open the stores of two nodes on an empty database of the present schema."""
        opened: list[PostgresStore] = []
        monitor = await asyncpg.connect(url)
        try:
            for _ in NODES:
                store = await open_store(url, pool_size=2, statement_seconds=STATEMENT_SECONDS)
                assert isinstance(store, PostgresStore)
                opened.append(store)
            stores = {
                label: SteppedStore(label, store)
                for label, store in zip(NODES, opened, strict=True)
            }
            yield cls(stores, monitor, url)
        finally:
            for store in opened:
                await store.close()
            await monitor.close()

    def market(self, label: str) -> Market:
        """Return a new marketplace of a node for a unit, with nothing in its memory."""
        made = Market(self.stores[label], self.clock, providers={"bank": self.bank})
        made.leases.node_id = NODES[label]
        return made

    async def keep(self) -> None:
        """Keep the present rows as those of the start, and note each table that changes."""
        rows = await self._monitor.fetch(
            """
            SELECT table_name, string_agg(column_name, ',' ORDER BY ordinal_position) AS columns
            FROM information_schema.columns AS c JOIN information_schema.tables AS t
            USING (table_schema, table_name)
            WHERE table_schema = 'public' AND table_type = 'BASE TABLE' AND is_generated = 'NEVER'
            AND table_name <> 'schema_versions'
            GROUP BY table_name ORDER BY table_name
            """
        )
        self._tables = {row["table_name"]: row["columns"].split(",") for row in rows}
        await self._monitor.execute(_NOTING)
        for each in self._tables:
            await self._monitor.execute(
                f"CREATE TABLE {KEPT}.{each} AS"
                f" SELECT {', '.join(self._tables[each])} FROM public.{each};"
                f"CREATE TRIGGER kept AFTER INSERT OR UPDATE OR DELETE ON public.{each}"
                f" FOR EACH STATEMENT EXECUTE FUNCTION {KEPT}.note()"
            )
        start = await self._dump(list(self._tables))
        self._known = frozenset(
            UUID.findall(" ".join(text for rows in start.values() for text in rows))
        )
        self._start = {name: Counter(map(self.plain, rows)) for name, rows in start.items()}
        referring = await self._monitor.fetch(_REFERRING)
        for store in self.stores.values():
            store.referring = frozenset(row["name"] for row in referring)

    async def restore(self) -> None:
        """Bring back the rows of the start."""
        # Neither rules of the schema nor its triggers matter for rows that were there before.
        statements = "".join(
            f"DELETE FROM {each};"
            f" INSERT INTO {each} ({', '.join(self._tables[each])}) SELECT * FROM {KEPT}.{each};"
            for each in await self._changed()
        )
        await self._monitor.execute(
            f"BEGIN; SET LOCAL session_replication_role = replica; {statements}"
            f"TRUNCATE {KEPT}.changes; COMMIT"
        )
        self._restored += 1
        if self._restored % VACUUM_EVERY == 0:
            await self._monitor.execute("VACUUM")

    async def changes(self) -> Counter[str]:
        """Return the new rows since the start, and the deleted ones, without drawn values."""
        changes: Counter[str] = Counter()
        for name, texts in (await self._dump(await self._changed())).items():
            rows, start = Counter(map(self.plain, texts)), self._start[name]
            changes.update({f"+ {name} {row}": count for row, count in (rows - start).items()})
            changes.update({f"- {name} {row}": count for row, count in (start - rows).items()})
        return changes

    async def _changed(self) -> list[str]:
        rows = await self._monitor.fetch(f"SELECT DISTINCT name FROM {KEPT}.changes ORDER BY name")
        return [row["name"] for row in rows]

    async def _dump(self, tables: Sequence[str]) -> dict[str, list[str]]:
        """Return the rows of some tables as texts, without the columns of drawn values."""
        dumped: dict[str, list[str]] = {each: [] for each in tables}
        statement = " UNION ALL ".join(
            f"SELECT '{each}', (to_jsonb(t) - ARRAY[{_left_out(self._tables[each])}]::text[])::text"
            f" FROM {each} AS t"
            for each in tables
        )
        for name, text in await self._monitor.fetch(statement) if tables else ():
            dumped[name].append(text)
        return dumped

    def plain(self, text: str) -> str:
        """Return a text without the identifiers and the hashes that a trial has drawn."""
        text = SHOWN.sub("drawn", text)
        return UUID.sub(lambda match: match[0] if match[0] in self._known else "new", text)

    async def broken(self) -> list[str]:
        """Return the rules that the present rows break."""
        broken = [
            f"{rule}: {[tuple(row) for row in rows]}"
            for rule, statement in RULES.items()
            if (rows := await self._monitor.fetch(statement))
        ]
        ledger, log = await audit_ledger(self.stores["a"]), await audit_log(self.stores["a"])
        broken += [
            f"audit: {check.promise}: {check.differences}"
            for check in (*ledger.checks, *log.checks)
            if check.differences
        ]
        return broken

    def turns(self, order: Order) -> Turns:
        """Return the turns of a trial."""
        return Turns(order, self._monitor)

    def step(self, turns: Turns | None) -> None:
        """Have the statements of all units wait for turns; None for no wait."""
        for store in self.stores.values():
            store.turns = turns


def _left_out(columns: Sequence[str]) -> str:
    return ", ".join(f"'{each}'" for each in columns if each in DRAWN)


def differences(found: Counter[str], expected: Counter[str]) -> Sequence[str]:
    """Return the changes that one has more often than the other."""
    more = [f"only here: {row}" for row in sorted((found - expected).elements())]
    return more + [f"not here: {row}" for row in sorted((expected - found).elements())]
