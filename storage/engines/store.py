"""The promises of a store: units of work over one transaction, the same on every engine.

A unit of work is a coroutine that awaits nothing but its transaction. SQL is written once, in the
language that both engines speak; only triggers are written twice. Rows that change together are
locked first (`Transaction.lock`, which does nothing on SQLite), and many rows cost one statement
(`Transaction.table`).
"""

from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import lru_cache
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from storage.engines.health import Health

Value = str | int | float | None
Row = TypeVar("Row")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class Transaction(Protocol):
    """Statements of one open transaction, in the SQL that both engines speak.

    SQL refers to values by name (`:name`). A row comes back as `row(*columns)`, in the order of the
    columns.
    """

    async def run(self, sql: str, **values: Value) -> int:
        """Run one statement and return how many rows it changed.

        Raises:
            ConstraintError: a rule of the schema forbids it.
            UnavailableError: the database did not answer.
        """

    async def one(self, row: Callable[..., Row], sql: str, **values: Value) -> Row | None:
        """Return the first row, or None. Raises as `run`."""

    async def all(self, row: Callable[..., Row], sql: str, **values: Value) -> list[Row]:
        """Return every row. Raises as `run`."""

    async def lock(self, table: str, ids: Sequence[str]) -> None:
        """Lock rows until the end of the transaction, in an order that cannot deadlock."""

    def table(self, name: str, **columns: str) -> str:
        """Return SQL for a table whose rows come with the statement.

        Args:
            name: the table's alias, and the name of the value that holds its rows: a JSON array of
                objects, one a row.
            columns: the SQL type of each column.
        """

    def among(self, name: str) -> str:
        """Return the SQL after a column that compares it with the texts of a value.

        PostgreSQL expects few texts, and looks each up by an index; of a joined `table` it expects
        a hundred rows, and may read all rows of the other table instead.

        Args:
            name: the name of the value with the texts: a JSON array.
        """

    async def notify(self, *texts: str) -> None:
        """Send texts to all nodes on this database, through their `Link`s, upon the commit.

        Does nothing on a database that has only one daemon. A unit that is rolled back sends none.

        Args:
            texts: one line each, of at most 4,000 bytes.
        """

    def after_commit(self, call: Callable[[], None]) -> None:
        """Call a function on the event loop once the unit is committed, in this process.

        It is not if the unit is rolled back, nor if the answer to the commit is lost: a component
        that depends on the call must also check by itself. It may neither raise nor wait.
        """


async def insert_row(tx: Transaction, table: str, **values: Value) -> None:
    """Insert one row with a value for each of some columns. Raises as `Transaction.run`."""
    await tx.run(_insertion(table, tuple(values)), **values)


@lru_cache(maxsize=512)  # more than there are calls of `insert_row` in the program
def _insertion(table: str, columns: tuple[str, ...]) -> str:
    named = ", ".join(f":{name}" for name in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({named})"


class Link(Protocol):
    """A node's connection to the others on its database: presence, notices, the sweepers' lock.

    Nodes are daemons on PostgreSQL, and processes of one service on SQLite. Every method raises
    `UnavailableError` when the connection is lost. The lock may be lost with it, and notices may
    have been missed.
    """

    async def connect(self, on_notice: Callable[[str], None], on_lost: Callable[[], None]) -> None:
        """Close an earlier connection, connect, and begin to receive notices.

        Args:
            on_notice: called with each text of `Transaction.notify`, this node's own included.
            on_lost: called when the connection is lost, or notices may be.
        """

    async def register(self, node_id: str) -> None:
        """Add a node to the nodes of this database."""

    async def renew(self, node_id: str) -> bool:
        """Record that a node is alive; False when it was declared dead before."""

    async def exited(self, node_ids: Collection[str]) -> list[str]:
        """Return the nodes that have certainly ended, so that no caller awaits their timeout.

        The others may be alive, hang, or have ended. PostgreSQL cannot report this.

        Args:
            node_ids: all nodes of this database.
        """

    async def end_hanging(self) -> int:
        """End the transactions of daemons that hang in the middle of one, which frees their locks.

        A daemon without power or network may leave one open that locks rows of its node. Return
        the number of ended transactions. SQLite has none.
        """

    async def try_to_sweep(self) -> bool:
        """Take the sweepers' lock if it is free. Return whether this node holds it.

        Callers repeat the call: a holder that does not repeat it loses the lock after the timeout.
        """

    async def is_unswept(self) -> bool:
        """Return whether the sweepers' lock is free, without keeping it.

        Like `try_to_sweep` it takes the lock from a holder that is silent for the timeout.
        """

    async def close(self) -> None:
        """Disconnect, which frees the lock."""


Unit = Callable[Concatenate[Transaction, Arguments], Coroutine[Any, Any, Result]]


class Store(Protocol):
    """A database. Units of work may await nothing but their transaction and may be run again."""

    async def write(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run a unit in a transaction and commit it durably; an exception rolls it back.

        Raises:
            UnknownOutcomeError: the answer to the commit was lost; so a unit that its caller
                repeats must be idempotent.
            UnavailableError: the database did not take it. Nothing was written.
        """

    async def read(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run a unit that only reads, all of it over one snapshot.

        Raises:
            UnavailableError: the database did not answer.
        """

    async def scrub(self, tables: Sequence[str]) -> bool:
        """Remove the remains of deleted text from the files of the database.

        SQLite empties its log; its file has none, because each connection overwrites deleted
        text. PostgreSQL vacuums the tables.

        Returns:
            False if others used the database meanwhile, so that it is to be repeated.

        Raises:
            UnavailableError: the database did not answer.
        """

    def version(self) -> bytes | None:
        """Return a token that changes with every commit of any process; None if unsupported.

        It costs no query. Data read after a token was taken is current until the token changes.
        """

    def health(self) -> Health:
        """Return the known state of the database; this costs no query."""

    def set_aside(self) -> "Store":
        """Return the same database with separate connections for leases and counts.

        Units there do not wait behind this store's. It is this store itself where one lane serves
        all, and is closed with this store.
        """

    async def claim(self, on_lost: Callable[[], None]) -> None:
        """Become the one daemon on this database, until `close`.

        Does nothing on a database that serves any number of daemons, or that was claimed for all
        processes of a service by the one that starts them (`storage.engines.claim`).

        Args:
            on_lost: called if the claim is lost before.

        Raises:
            AlreadyClaimedError: another daemon has claimed it.
            CannotOpenError: the claim cannot be recorded.
        """

    def link(self, timeout_seconds: float) -> "Link | None":
        """Return this node's connection to the others; None on a database that has only one.

        Args:
            timeout_seconds: the longest silence of a node, after which it loses the connection and
                its locks.
        """

    async def close(self) -> None:
        """Finish the units that were accepted and close every connection."""


async def probe(tx: Transaction) -> None:
    """Run an empty query: does the database answer?"""
    await tx.run("SELECT 1")
