"""Exits that lie: findings about them, and their ban.

Through each exit the daemon fetches pages with a known content. An exit that returns another
content is barred: it stops being an exit, even with its owner's consent, and its owner loses the
earnings that are not posted yet. An operator can read the findings, take back pending earnings
(`market.exits.payouts.reverse`), or pardon.
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
    """Device in an operator's view: its present state, its consents, and the findings about it."""

    row: ExitRow
    history: list[ConsentRow]
    findings: list[FindingRow]


class ExitCanaries:
    """Bans of exits that lie."""

    def __init__(self, context: Context, exits: Exits) -> None:
        self._context = context
        self._exits = exits

    async def bar(self, device_id: str, kind: str, evidence: str) -> None:
        """Bar a device for a finding; a second call does no harm.

        Args:
            device_id: the device.
            kind: a key of `BARRED_WORDS`.
            evidence: the evidence, for the operator; an overlong text is cut.

        Raises:
            StoreError: the device is not barred.
        """
        now, identifiers = self._context.now(), self._context.identifiers
        shown = "".join(each if each.isprintable() else "?" for each in evidence)
        finding = FindingRow(
            identifiers.new(), device_id, kind, shown[:EVIDENCE_MAX_CHARACTERS], now, None
        )
        event = ConsentRow(identifiers.new(), device_id, "barred", "", f"canary: {kind}", now)
        if not await self._context.store.write(_bar, finding, event):
            _logger.warning("exit %s: unknown device, not barred", device_id)
        self._exits.tell(device_id)

    @staticmethod
    def words(kind: str) -> str:
        """Return the reason of a device's bar, for its owner."""
        return BARRED_WORDS[kind]


async def pardon(context: Context, device_id: str) -> None:
    """Let a device that is barred be an exit again; its owner's consent holds as before.

    Reversed earnings stay reversed.

    Raises:
        MarketError: `token_not_found`, when it is not barred.
    """
    event = ConsentRow(context.identifiers.new(), device_id, "pardoned", "", "", context.now())
    await context.store.write(pardon_in, event)


async def barred(context: Context) -> list[BarredRow]:
    """Return devices that are barred, the latest first, up to a bound."""
    return await context.store.read(queries.barred, BARRED_SHOWN)


async def record(context: Context, device_id: str) -> ExitRecord:
    """Return the record of a device as an exit.

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


async def pardon_in(tx: Transaction, event: ConsentRow) -> None:
    """Let a barred device be an exit again; raises as `pardon`."""
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
