"""Findings: differences between an answer that came through an exit and the known one."""

from dataclasses import dataclass
from typing import Final

from proxyd.exits.dialling.errand import Unknown
from proxyd.exits.watching.fetch import Answer, Page

SHOWN_BYTES: Final = 48
# Statuses of sites that reject visitors, for example because of too many requests.
TURNED_AWAY: Final = frozenset((403, 408, 425, 429, 451, 500, 502, 503, 504))
TURNED_AWAY_KIND: Final = "turned away"  # a finding that is no verdict


class TurnedAway(Exception):  # noqa: N818 - nobody is at fault
    """A site would not answer the exit; or so it was answered."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Fault that a look has found: its kind, its evidence, and whether that is certain."""

    kind: str
    evidence: str
    is_certain: bool


def judged(page: Page, answer: Answer, truth: Answer) -> Finding | None:
    """Return the fault that an answer shows; None if it is the truth.

    Raises:
        Unknown: it is another one, but the site itself has sent it.
    """
    if answer.certificate != truth.certificate:
        shown = f"certificate {answer.certificate}, expected {truth.certificate}"
        return Finding("certificate", f"{page.url}: {shown}", is_certain=True)
    if answer == truth:
        return None
    words = f"{page.url}: {_difference(answer, truth)}"
    if page.is_tls:
        raise Unknown(f"the site itself says otherwise: {words}")
    if answer.status in TURNED_AWAY and answer.status != truth.status:
        return Finding(TURNED_AWAY_KIND, words, is_certain=False)
    return Finding("content", words, is_certain=True)


def _difference(answer: Answer, truth: Answer) -> str:
    """Return the difference of two answers, with the bytes where it begins."""
    at = 0
    for at, (one, other) in enumerate(zip(answer.body, truth.body, strict=False)):  # noqa: B007
        if one != other:
            break
    else:
        at = min(len(answer.body), len(truth.body))
    shown = answer.body[at : at + SHOWN_BYTES]
    return f"{answer}, expected {truth}; from byte {at} on: {shown!r}"
