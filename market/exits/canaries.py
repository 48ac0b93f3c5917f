"""Exits that lie: what was found of them, and that they carry nothing any more.

The daemon fetches pages through each exit of which it knows the answer. Whose answer differs is
barred: it is no exit any more, whatever its owner agrees to, and what it has earned and is not
posted yet it does not get. An operator may look at what was found, take back what is pending
(`exit_payouts.claw_back`), or pardon.
"""

import logging
from typing import Final

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.exits.consents import BARRED_WORDS, Exits
from storage.devices import devices as device_queries
from storage.engines.store import Transaction
from storage.exits import exits as queries
from storage.exits.exits import BarredRow, ConsentRow, ExitRow, FindingRow

EVIDENCE_MAX_CHARACTERS: Final = 1_000
BARRED_SHOWN: Final = 1_000

_logger = logging.getLogger("exits")


class ExitRecord(Struct, frozen=True):
    """A device as an operator sees it: what holds, what was said of it, and what was found."""

    row: ExitRow
    history: list[ConsentRow]
    findings: list[FindingRow]


class ExitCanaries:
    """Bars exits that lie.

    Args:
        context: the store, identifiers and the time.
        exits: tell those who watch.
    """

    def __init__(self, context: Context, exits: Exits) -> None:
        self._context = context
        self._exits = exits

    async def bar(self, device_id: str, kind: str, evidence: str) -> None:
        """Bar a device for what was found; harmless when it is barred.

        Args:
            device_id: which.
            kind: of `BARRED_WORDS`.
            evidence: what shows it, for the operator; the end is left off where it is too long.

        Raises:
            StoreError: it is not barred.
        """
        now, identifiers = self._context.now(), self._context.identifiers
        shown = "".join(each if each.isprintable() else "?" for each in evidence)
        finding = FindingRow(
            identifiers.new(), device_id, kind, shown[:EVIDENCE_MAX_CHARACTERS], now, None
        )
        event = ConsentRow(identifiers.new(), device_id, "barred", "", f"canary: {kind}", now)
        if not await self._context.store.write(_bar, finding, event):
            _logger.warning("exit %s: there is no such device to be barred", device_id)
        self._exits.tell(device_id)

    @staticmethod
    def words(kind: str) -> str:
        """Return why a device is barred, for its owner."""
        return BARRED_WORDS[kind]


async def pardon(context: Context, device_id: str) -> None:
    """Let a device that is barred be an exit again; its owner's consent holds as before.

    What was reversed of its earnings stays so.

    Raises:
        MarketError: `token_not_found`, when it is not barred.
    """
    event = ConsentRow(context.identifiers.new(), device_id, "pardoned", "", "", context.now())
    await context.store.write(_pardon, event)


async def barred(context: Context) -> list[BarredRow]:
    """Return devices that are barred, the latest first, up to a bound."""
    return await context.store.read(queries.barred, BARRED_SHOWN)


async def record(context: Context, device_id: str) -> ExitRecord:
    """Return all that is known of a device as an exit.

    Raises:
        MarketError: `token_not_found`, when it has never been one.
    """
    return await context.store.read(_record, device_id)


async def _bar(tx: Transaction, finding: FindingRow, event: ConsentRow) -> bool:
    await device_queries.lock(tx, event.device_id)
    if await queries.find(tx, event.device_id) is None:
        return False
    await queries.insert_finding(tx, finding)
    if await queries.bar(tx, event.device_id, event.created_at, finding.kind):
        await queries.insert_consent(tx, event)
    return True


async def _pardon(tx: Transaction, event: ConsentRow) -> None:
    await device_queries.lock(tx, event.device_id)
    if not await queries.unbar(tx, event.device_id):
        raise MarketError(Code.TOKEN_NOT_FOUND, "There is no such exit that is barred.")
    await queries.pardon_findings(tx, event.device_id, event.created_at)
    await queries.insert_consent(tx, event)


async def _record(tx: Transaction, device_id: str) -> ExitRecord:
    row = await queries.find(tx, device_id)
    if row is None:
        raise MarketError(Code.TOKEN_NOT_FOUND, "There is no such exit.")
    history = await queries.consents(tx, device_id)
    return ExitRecord(row, history, await queries.findings(tx, device_id))
