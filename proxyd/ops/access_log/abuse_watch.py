"""Counters of each session for the rules against scans and spam, a minute at a time.

The thread of the access log counts, from the records that it gets anyway: no connection waits for
it, and no query is made. Counts are of one process. A rule that observes fires once an hour for a
session, and a rule that acts once a minute. At the end of a minute the figures above a quarter of a
threshold are peaks, which show what another threshold would find.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from msgspec import Struct

from market.staff.abuse.rule_tickets import Peak
from proxyd.access import Ending
from proxyd.access_records import Access, Reached

MINUTE, HOUR = 60, 3600
SESSIONS_MAX: Final = 10_000  # more sessions of one minute are not watched
TARGETS_MAX: Final = 5_000  # of one session: far above every useful threshold
PEAKS_MAX: Final = 1_000  # of one minute
PEAK_PART: Final = 4  # a peak is above this part of a threshold
MAIL_PORTS: Final = frozenset((25, 465, 587))
LOGIN_PORTS: Final = frozenset((22, 445, 3389, 5900))
SCAN, MAIL, LOGIN = "scan", "mail", "login"

_REFUSED: Final = frozenset((Ending.NOT_ALLOWED, Ending.LIMITED))
_FAILURES: Final = frozenset(
    (
        Ending.TIMED_OUT,
        Ending.GENERAL,
        Ending.NETWORK_UNREACHABLE,
        Ending.HOST_UNREACHABLE,
        Ending.REFUSED,
        Ending.CLIENT_LEFT,
    )
)


class Thresholds(Struct, frozen=True):
    """Figures of a minute above which a rule fires; 0 switches the rule off.

    `scan_targets`: distinct targets on one port, if more than `scan_failed_percent` of the dials
    failed.
    `mail_refusals`: dials to refused mail ports. `login_connections`: connections to one host's
    ports 22, 445, 3389 and 5900. `acting` are the rules that stop sessions.
    """

    scan_targets: int
    scan_failed_percent: int
    mail_refusals: int
    login_connections: int
    acting: frozenset[str] = frozenset()


class Finding(Struct, frozen=True):
    """A session that a rule has found, with the figures of the minute."""

    rule: str
    session_id: str
    at: int
    figures: Mapping[str, int]


class _Counts:
    """The dials of one session in one minute."""

    def __init__(self) -> None:
        self.targets: dict[int, set[str]] = {}
        self.size = 0
        self.dials: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self.logins: Counter[tuple[str, int]] = Counter()
        self.mails = 0


class AbuseWatch:
    """Counts dials, and reports sessions above a threshold.

    Args:
        thresholds: the figures of the rules.
        fire: is called in the thread of the access log with each finding.
        note: is called there with the peaks of a minute, if there are any.
    """

    def __init__(
        self,
        thresholds: Thresholds,
        fire: Callable[[Finding], None],
        note: Callable[[list[Peak]], None] | None = None,
    ) -> None:
        self._thresholds = thresholds
        self._fire = fire
        self._note = note
        self._minute = 0
        self._counts: dict[str, _Counts] = {}
        self._hour = 0
        # The time of the last finding, by rule and session; of this hour.
        self._fired: dict[tuple[str, str], int] = {}

    def change(self, thresholds: Thresholds) -> None:
        """Apply other figures from now on; callable from any thread."""
        self._thresholds = thresholds

    def reached(self, moment: int, record: Reached) -> None:
        """Count a connection that has reached its target."""
        if record.port:
            self._dialled(moment, record.session_id, record.host, record.port, is_failed=False)

    def failed(self, moment: int, record: Access) -> None:
        """Count a connection that has ended without a target."""
        if not record.port:
            return
        if record.port in MAIL_PORTS and record.reason in _REFUSED:
            self._refused_mail(moment, record)
        elif record.reason in _FAILURES:
            self._dialled(moment, record.session_id, record.host, record.port, is_failed=True)

    def _dialled(
        self, moment: int, session_id: str, host: str, port: int, *, is_failed: bool
    ) -> None:
        counts = self._of(moment, session_id)
        if counts is None:
            return
        counts.dials[port] += 1
        if is_failed:
            counts.failed[port] += 1
        targets = counts.targets.setdefault(port, set())
        if counts.size < TARGETS_MAX and host not in targets:
            targets.add(host)
            counts.size += 1
        self._check_scan(moment, session_id, counts, port)
        if port in LOGIN_PORTS:
            if len(counts.logins) < TARGETS_MAX:
                counts.logins[host, port] += 1
            self._check_logins(moment, session_id, counts.logins[host, port], port)

    def _check_scan(self, moment: int, session_id: str, counts: _Counts, port: int) -> None:
        most, targets = self._thresholds, len(counts.targets[port])
        if not 0 < most.scan_targets < targets:
            return
        failed, dials = counts.failed[port], counts.dials[port]
        if failed * 100 > dials * most.scan_failed_percent:
            figures = {"port": port, "targets": targets, "dials": dials, "failed": failed}
            self._report(SCAN, session_id, moment, figures)

    def _check_logins(self, moment: int, session_id: str, connections: int, port: int) -> None:
        if 0 < self._thresholds.login_connections < connections:
            figures = {"port": port, "connections": connections}
            self._report(LOGIN, session_id, moment, figures)

    def _refused_mail(self, moment: int, record: Access) -> None:
        counts = self._of(moment, record.session_id)
        if counts is None:
            return
        counts.mails += 1
        if 0 < self._thresholds.mail_refusals < counts.mails:
            figures = {"port": record.port, "refusals": counts.mails}
            self._report(MAIL, record.session_id, moment, figures)

    def _of(self, moment: int, session_id: str) -> _Counts | None:
        if moment // MINUTE != self._minute:
            if self._note is not None:
                peaks = list(islice(self._peaks(), PEAKS_MAX))
                if peaks:
                    self._note(peaks)
            self._minute = moment // MINUTE
            self._counts.clear()
        counts = self._counts.get(session_id)
        if counts is None and len(self._counts) < SESSIONS_MAX:
            counts = self._counts[session_id] = _Counts()
        return counts

    def _peaks(self) -> Iterator[Peak]:
        """Yield the figures of the minute that are above a part of their thresholds."""
        most, at = self._thresholds, self._minute * MINUTE
        for session_id, counts in self._counts.items():
            if 0 < most.scan_targets < counts.size * PEAK_PART:
                port = max(counts.targets, key=lambda each: len(counts.targets[each]))
                amount, dials = len(counts.targets[port]), counts.dials[port]
                if most.scan_targets < amount * PEAK_PART:
                    percent = counts.failed[port] * 100 // dials
                    yield Peak(SCAN, session_id, at, amount, percent)
            if 0 < most.mail_refusals < counts.mails * PEAK_PART:
                yield Peak(MAIL, session_id, at, counts.mails, 100)
            logins = max(counts.logins.values(), default=0)
            if 0 < most.login_connections < logins * PEAK_PART:
                yield Peak(LOGIN, session_id, at, logins, 0)

    def _report(self, rule: str, session_id: str, moment: int, figures: Mapping[str, int]) -> None:
        if moment // HOUR != self._hour:
            self._hour = moment // HOUR
            self._fired.clear()
        before = self._fired.get((rule, session_id))
        if before is not None and (
            rule not in self._thresholds.acting or before // MINUTE == moment // MINUTE
        ):
            return
        self._fired[rule, session_id] = moment
        self._fire(Finding(rule, session_id, moment, figures))
