"""Orders of the staff to every node: halt sessions, let them go on, look at devices again.

An order is a row, in the transaction of its act. A notice calls the nodes on PostgreSQL; it has no
content, because each node reads the orders that are new to it. So a lost notice delays an order
until the next look, and an order that comes twice is harmless. A node acknowledges an order when it
has cut the connections.
"""

import asyncio
from collections.abc import Collection, Sequence
from enum import StrEnum

from msgspec import Struct

from market.events.context import Context
from storage.bandwidth import halts as queries
from storage.bandwidth import nodes
from storage.bandwidth.halts import HaltRow
from storage.engines.store import Transaction

ORDERS_MAX = 500  # carried out in one turn
NOTICE = "halts"
ANSWER_SECONDS = 1.0  # within which every node cuts
STEP_SECONDS = 0.02


class HaltKind(StrEnum):
    """Work of the nodes: cut and refuse sessions, forget the refusals, or look at devices again."""

    HALT = "halt"
    GO = "go"
    LOOK = "look"


async def call_nodes(tx: Transaction, number: int) -> None:
    """Call all nodes upon the commit. On SQLite they see the commit itself."""
    await tx.notify(f"{NOTICE} {number}")


def is_call(text: str) -> bool:
    """Return whether a notice calls the nodes to read new orders."""
    return text.partition(" ")[0] == NOTICE


class Halts:
    """The orders that are new to this node."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._last = 0

    async def begin(self) -> None:
        """Skip the orders of the past: a node that starts has nothing to cut.

        Raises:
            StoreError: the store did not answer.
        """
        self._last = await self._store.read(queries.newest)

    async def new(self) -> list[HaltRow]:
        """Return the orders since the last ones that were `done`, the oldest first.

        Raises:
            StoreError: the store did not answer.
        """
        return await self._store.read(queries.after, self._last, limit=ORDERS_MAX)

    async def done(self, node_id: str, carried_out: Sequence[tuple[int, int]]) -> None:
        """Acknowledge orders, each with its number and the connections that were cut.

        Raises:
            StoreError: perhaps written, perhaps not; it is repeated with the next orders.
        """
        await self._store.write(queries.acknowledge, node_id, carried_out)
        self._last = max(self._last, *(number for number, _ in carried_out))


class Answered(Struct, frozen=True):
    """Acknowledgements of an order: their number, the cut connections, and the seconds.

    `silent` are the nodes that have not acknowledged it: each acts when it can read the store.
    """

    nodes: int
    connections: int
    seconds: float
    silent: tuple[str, ...]


async def expected(tx: Transaction) -> tuple[str, ...]:
    """Return the nodes that acknowledge an order of this transaction.

    A daemon that serves a database alone is no node.
    """
    return tuple(row.id for row in await nodes.seen(tx))


async def answered(
    context: Context, number: int, names: Collection[str], *, seconds: float = ANSWER_SECONDS
) -> Answered:
    """Wait until all nodes have acknowledged an order, at most for a while.

    Args:
        context: the open store.
        number: of the order, which is committed.
        names: the nodes; "" for the one daemon of the database.
        seconds: the longest wait.

    Raises:
        StoreError: the store did not answer.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        acks = await context.store.read(queries.acks, number)
        passed = loop.time() - began
        silent = tuple(sorted(set(names) - {each.node_id for each in acks}))
        if not silent or passed >= seconds:
            cut = sum(each.connections for each in acks)
            return Answered(len(names), cut, round(passed, 3), silent)
        await asyncio.sleep(STEP_SECONDS)
