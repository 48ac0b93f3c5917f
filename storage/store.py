"""What a store promises: units of work over one transaction, the same on every engine."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

Value = str | int | float | None
Row = TypeVar("Row")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class Transaction(Protocol):
    """Statements of one open transaction, in the SQL that both engines speak.

    Values are named (`:name`). A row comes back as `row(*columns)`, in the order of the columns.
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
        """Return SQL for a table of as many rows as wanted, so that they cost one statement.

        Args:
            name: what it is called, and the value that holds its rows: a JSON array of objects.
            columns: the SQL type of each.
        """

    async def notify(self, *texts: str) -> None:
        """Tell all daemons on this database, through their `Link`s, once this is committed.

        Where there is only one, nobody is told.
        """


class Link(Protocol):
    """One connection that is this daemon's presence among others: notices, and the sweepers' lock.

    Every method raises `UnavailableError` when the connection is lost; then the lock is too, and
    notices may have been missed.
    """

    async def connect(self, on_notice: Callable[[str], None], on_lost: Callable[[], None]) -> None:
        """Connect, anew if it was connected: from here on, notices are heard.

        Args:
            on_notice: called with what a transaction told, the own ones among them.
            on_lost: called when the connection is lost.
        """

    async def register(self, node_id: str) -> None:
        """Make a node known."""

    async def renew(self, node_id: str) -> bool:
        """Say that a node lives; False when it was declared dead."""

    async def try_to_sweep(self) -> bool:
        """Take the sweepers' lock if nobody holds it; say whether it is held here."""

    async def close(self) -> None:
        """Disconnect; the lock is free for others."""


Unit = Callable[Concatenate[Transaction, Arguments], Coroutine[Any, Any, Result]]


class Store(Protocol):
    """A database. Units of work may await nothing but their transaction and may be run again."""

    async def write(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run a unit in a transaction and commit it durably; an exception rolls it back.

        Raises:
            UnavailableError: the database did not take it; nothing was written, unless the
                answer to the commit was lost. Whatever is repeated must bear that.
        """

    async def read(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run a unit that only reads, all of it over one snapshot.

        Raises:
            UnavailableError: the database did not answer.
        """

    def version(self) -> bytes | None:
        """Return what changes with every commit, whoever makes it; None if that cannot be told.

        It costs no question to the database. What was read since a version was taken is as good as
        read now, as long as the version is the same.
        """

    def set_aside(self) -> "Store":
        """Return the same database, for units that must not wait behind those of this store.

        It is this store where there is nothing to wait for, and is closed with it.
        """

    async def claim(self, on_lost: Callable[[], None]) -> None:
        """Become the one daemon on this database, until `close`; `on_lost` is called if that ends.

        Nothing happens where a database serves any number of daemons.

        Raises:
            AlreadyClaimedError: another daemon is.
        """

    def link(self, timeout_seconds: float) -> "Link | None":
        """Return what ties this daemon to the others; None where a database has only one.

        Args:
            timeout_seconds: how long the database may hear nothing of it before it lets it go.
        """

    async def close(self) -> None:
        """Finish what was begun and close every connection."""


async def probe(tx: Transaction) -> None:
    """Ask the database for nothing, to see whether it answers."""
    await tx.run("SELECT 1")
