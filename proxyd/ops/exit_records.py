"""The connections through an exit at a time, out of the access records of this machine."""

import asyncio
from ipaddress import ip_address
from typing import Final

from config.settings import Settings
from market.base.errors import Code, MarketError
from market.events.context import Context
from market.staff.abuse.exit_use import Destination, Found, Question, Use
from market.staff.abuse.rules import RuleSetting
from proxyd.egress.own import OwnAddresses
from proxyd.ops.access_lines import TargetHash, timestamp
from proxyd.ops.access_place import access_folder, access_key
from proxyd.ops.access_search import FOUND_MAX, Carried, Searched, Wanted, compared, search
from storage.bandwidth import nodes
from storage.engines.place import is_sqlite

DAY_SECONDS: Final = 86_400


async def find(settings: Settings, context: Context, question: Question) -> Found:
    """Return the connections in the records of this machine, and the reasons for gaps.

    Raises:
        MarketError: `invalid_field`, when the records cannot be read.
    """
    now = context.now()
    folder = access_folder(settings)
    gaps = await _unsearched(settings, context)
    if folder is None:
        return Found((), [*gaps, "access_log is off: no connection is recorded."])
    days = settings.access_log.keep_days
    if question.at < now - days * DAY_SECONDS:
        return Found((), [*gaps, f"Records are kept for {days} days; those of this time are gone."])
    hashed = TargetHash(access_key(settings))
    wanted = Wanted(
        address=question.exit_address,
        first=question.at - question.within,
        last=min(question.at + question.within, now),
        with_direct=_is_own(settings, question.exit_address),
        host=question.host,
        hashed=hashed,
    )
    try:
        found = await asyncio.to_thread(search, folder, wanted)
    except OSError as error:
        raise MarketError(
            Code.INVALID_FIELD, f"The access log in {folder}: {error.strerror}."
        ) from None
    uses = [_use(each, question, hashed) for each in found.carried]
    return Found(uses, [*gaps, *_gaps(question, found)], has_more=found.has_more)


def _use(carried: Carried, question: Question, hashed: TargetHash) -> Use:
    line = carried.line
    is_equal = compared(line, question.host, hashed) if question.host else None
    destination = {True: Destination.EQUAL, None: Destination.UNKNOWN}
    return Use(
        session_id=line.session,
        exit=line.exit or ", ".join(device for device, _ in line.tried),
        started=carried.started,
        ended=carried.ended,
        protocol=line.protocol or "tcp",
        port=line.port,
        source_port=line.source_port,
        destination=destination.get(is_equal, Destination.DIFFERENT),
        bytes_up=line.bytes_up,
        bytes_down=line.bytes_down,
        reason=line.reason or "open",
    )


def _gaps(question: Question, found: Searched) -> list[str]:
    """Return a sentence for each reason for a missing connection."""
    gaps = []
    if found.missing:
        hours = ", ".join(timestamp(each * 3600)[:13] + "h" for each in found.missing)
        gaps.append(f"This machine has no records of {hours}: the daemon did not run or record.")
    if found.lost:
        gaps.append(f"{found.lost} lines were lost in this time or before; some may be missing.")
    if found.has_more:
        gaps.append(f"More than {FOUND_MAX} connections match; narrow --within, or give --to.")
    if not (found.carried or found.elsewhere or found.missing):
        gaps.append(
            f"No connection left by {question.exit_address} at this time: the address was not "
            "that of a device, or no customer used it."
        )
    elif not found.carried and found.elsewhere:
        gaps.append(
            f"{found.elsewhere} connections left by {question.exit_address} at this time, all to "
            "other destinations."
        )
    return gaps


async def _unsearched(settings: Settings, context: Context) -> list[str]:
    """Return a sentence about nodes whose records are on other machines."""
    if is_sqlite(settings.storage.url):
        return []
    seen = await context.store.read(nodes.seen)
    if len(seen) < 2:
        return []
    names = ", ".join(sorted(each.id for each in seen))
    gap = (
        f"Only the records of this machine are searched. {len(seen)} nodes share the database "
        f"({names}): repeat the command on each other machine."
    )
    return [gap]


def _is_own(settings: Settings, address: str) -> bool:
    """Return whether connections without an exit leave by an address."""
    if address == settings.proxy.public_host:
        return True
    own = OwnAddresses()
    own.open()
    try:
        return own(ip_address(address))
    finally:
        own.close()


def rules_of(settings: Settings) -> list[RuleSetting]:
    """Return the rules against scans and spam; without records none of them is on."""
    abuse, is_on = settings.abuse, access_folder(settings) is not None
    return [
        RuleSetting(name, "observe" if is_on and most else "off", most, of)
        for name, most, of in (
            (
                "scan",
                abuse.scan_targets,
                f"targets on one port, more than {abuse.scan_failed_percent} % failed",
            ),
            ("mail", abuse.mail_refusals, "refused dials to mail ports"),
            ("login", abuse.login_connections, "connections to one host's login port"),
        )
    ]
