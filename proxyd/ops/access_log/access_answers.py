"""The answer of this machine's access log to a question about an exit.

The commands of the staff ask it directly, and each node answers the commands of other machines.
"""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

from config.settings import Settings
from market.staff.abuse.exit_use import Destination, Found, Question, Use
from proxyd.egress.own import OwnAddresses
from proxyd.ops.access_log.access_lines import TargetHash, timestamp
from proxyd.ops.access_log.access_place import access_folder, access_key
from proxyd.ops.access_log.access_search import (
    FOUND_MAX,
    Carried,
    Line,
    Searched,
    Wanted,
    compared,
    search,
)

DAY_SECONDS: Final = 86_400


def find(settings: Settings, question: Question, now: int) -> Found:
    """Return the connections in the records of this machine, and the reasons for gaps.

    Raises:
        OSError: a file cannot be read.
    """
    folder = access_folder(settings)
    if folder is None:
        return Found((), ["access_log is off: no connection is recorded."])
    days = settings.access_log.keep_days
    if question.at < now - days * DAY_SECONDS:
        return Found((), [f"Records are kept for {days} days; those of this time are gone."])
    hashed = TargetHash(access_key(settings))
    wanted = Wanted(
        address=question.exit_address,
        first=question.at - question.within,
        last=min(question.at + question.within, now),
        with_direct=_is_own(settings, question.exit_address),
        host=question.host,
        hashed=hashed,
        devices=frozenset(question.devices),
    )
    found = search(folder, wanted)
    uses = [_use(each, question, hashed) for each in found.carried]
    return Found(uses, _gaps(found), has_more=found.has_more, nothing=_nothing(question, found))


def _use(carried: Carried, question: Question, hashed: TargetHash) -> Use:
    line, sent = carried.line, list(carried.sent)
    is_equal = compared(line, question.host, hashed) if question.host else None
    if question.host and sent:
        results = [compared(each, question.host, hashed) for each in sent]
        is_equal = True if True in results else None
        sent = [each for each, result in zip(sent, results, strict=True) if result is is_equal]
    shown = _shown(sent, question, is_certain=carried.is_whole or bool(is_equal)) or line
    destination = {True: Destination.EQUAL, None: Destination.UNKNOWN}
    return Use(
        session_id=line.session,
        exit=line.exit or ", ".join(device for device, _ in line.tried),
        started=carried.started,
        ended=carried.ended,
        protocol=line.protocol or "tcp",
        port=shown.port,
        source_port=shown.source_port,
        destination=destination.get(is_equal, Destination.DIFFERENT),
        bytes_up=line.bytes_up,
        bytes_down=line.bytes_down,
        reason=line.reason or "open",
        name=f"{line.run}/{line.process}/{line.connection}",
    )


def _shown(sent: Sequence[Line], question: Question, *, is_certain: bool) -> Line | None:
    """Return the destination of datagrams that fits a question best, None if that is unknown.

    Args:
        sent: the possible ones.
        question: the figures of the complaint.
        is_certain: whether it is one of these.
    """
    for each in sent:
        if question.port and each.port == question.port:
            return each
    return sent[0] if sent and is_certain else None


def _gaps(found: Searched) -> list[str]:
    """Return a sentence for each reason for a missing connection."""
    gaps = []
    if found.missing:
        hours = ", ".join(timestamp(each * 3600)[:13] + "h" for each in found.missing)
        gaps.append(f"This machine has no records of {hours}: the daemon did not run or record.")
    if found.lost:
        gaps.append(f"{found.lost} lines were lost in this time or before; some may be missing.")
    if found.has_more:
        gaps.append(f"More than {FOUND_MAX} connections match; narrow --within, or give --to.")
    return gaps


def _nothing(question: Question, found: Searched) -> str:
    """Return the reason why no connection is found; "" if one is, or the records are missing."""
    if found.carried or (found.missing and not found.elsewhere):
        return ""
    if not found.elsewhere:
        return (
            f"No connection left by {question.exit_address} at this time: the address was not "
            "that of a device, or no customer used it."
        )
    return (
        f"{found.elsewhere} connections left by {question.exit_address} at this time, all to "
        "other destinations."
    )


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
