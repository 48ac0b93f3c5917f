"""Questions about records to all nodes: each one searches its own machine, and writes its answer.

A notice calls the nodes. A silent node only leaves a gap: the answer names it, and has the records
of all others.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

import msgspec

from market.events.context import Context
from market.staff.abuse.exit_use import Found, Question
from storage.engines.errors import StoreError
from storage.engines.store import Transaction
from storage.staff.abuse import looks as queries
from storage.staff.abuse.looks import FindingsRow, LookRow

NOTICE = "looks"
ANSWER_SECONDS = 10.0  # a cold disk searches an hour of records in seconds
STEP_SECONDS = 0.1
ASKED_MAX = 20  # questions in one turn
USES_MAX = 2_000  # of one answer: a complaint with more is answered by --within or --to
UNREADABLE = "The records of this machine cannot be searched; its log has the reason."
OTHER_VERSION = "The answer is not readable here: this node may have another version."

_logger = logging.getLogger("looks")


def is_call(text: str) -> bool:
    """Return whether a notice calls the nodes to answer a question."""
    return text == NOTICE


async def ask(
    context: Context,
    question: Question,
    names: Collection[str],
    own: Found,
    *,
    seconds: float = ANSWER_SECONDS,
) -> Found:
    """Return the connections in the records of all nodes and of this machine.

    Args:
        context: the open store.
        question: the figures of the complaint.
        names: the nodes.
        own: the connections in the records of this machine.
        seconds: the longest wait.

    Raises:
        StoreError: the store did not answer.
    """
    look = LookRow(context.identifiers.new(), msgspec.json.encode(question).decode())
    await context.store.write(_insert, look, context.now())
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        answered = set(await context.store.read(queries.answered, look.id))
        if answered.issuperset(names) or loop.time() >= deadline:
            break
        await asyncio.sleep(STEP_SECONDS)
    rows = await context.store.read(queries.findings, look.id)
    found = _decoded(rows)
    return merged(own, found, sorted(set(names) - found.keys()))


def _decoded(rows: Sequence[FindingsRow]) -> dict[str, Found]:
    """Return the answers by node; one that another version wrote may be a gap."""
    found = {}
    for row in rows:
        try:
            found[row.node_id] = msgspec.json.decode(row.findings, type=Found)
        except msgspec.MsgspecError:
            found[row.node_id] = Found((), [OTHER_VERSION])
    return found


async def _insert(tx: Transaction, look: LookRow, now: int) -> None:
    await queries.insert(tx, look, now=now)
    await tx.notify(NOTICE)


def merged(own: Found, others: dict[str, Found], silent: Collection[str]) -> Found:
    """Return the findings of several machines as one, each connection once."""
    uses = {use.name: use for found in (own, *others.values()) for use in found.uses}
    gaps = list(own.gaps)
    for name, found in others.items():
        gaps += [f"Node {name}: {gap}" for gap in found.gaps if gap not in own.gaps]
    if silent:
        gaps.append(
            f"These nodes were silent: {', '.join(silent)}. Repeat the command, or run it on their "
            "machines."
        )
    has_more = any(found.has_more for found in (own, *others.values()))
    return Found(list(uses.values()), gaps, has_more, own.nothing)


async def answer_all(
    context: Context,
    node_id: str,
    search: Callable[[Question], Coroutine[Any, Any, Found]],
) -> int:
    """Answer the questions that a node has not answered, and return their number.

    A question that fails is answered with a gap, so that it comes once, and holds up no other.

    Raises:
        StoreError: they are answered later.
    """
    since = context.now() - queries.LIVES_SECONDS
    rows = await context.store.read(queries.unanswered, node_id, since=since, limit=ASKED_MAX)
    for row in rows:
        found = await _searched(row, search)
        if len(found.uses) > USES_MAX:
            found = Found(found.uses[:USES_MAX], found.gaps, True, found.nothing)
        findings = msgspec.json.encode(found).decode()
        await context.store.write(queries.answer, row.id, node_id, findings)
    return len(rows)


async def _searched(
    row: LookRow, search: Callable[[Question], Coroutine[Any, Any, Found]]
) -> Found:
    """Return the answer to a question; the daemon outlives a damaged file or question."""
    try:
        return await search(msgspec.json.decode(row.question, type=Question))
    except StoreError:
        raise
    except Exception:
        _logger.exception("the question %s about records failed", row.id)
        return Found((), [UNREADABLE])
