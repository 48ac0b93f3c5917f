"""E-mails to the operators: alerts, each kind once in six hours, and a daily summary."""

from collections.abc import Sequence

from msgspec import Struct

from market.accounts.mail import Message, encoded, mail_share
from market.accounts.outbox import Outbox
from market.events.context import Context
from storage.accounts import outbox as outbox_queries
from storage.engines.store import Transaction
from storage.jobs import reviews
from storage.site import alerts as queries
from storage.site.alerts import AlertRow, UpkeepRow
from storage.staff.base import log as log_queries
from storage.staff.base.log import HeadRow

HOUR_SECONDS = 3_600
DAY_SECONDS = 86_400
QUIET_SECONDS = 6 * HOUR_SECONDS
LIFETIME_SECONDS = DAY_SECONDS
# Clocks of several daemons differ by less.
CLOCKS_DIFFER_SECONDS = HOUR_SECONDS
BACKUP_MAX_SECONDS = 26 * HOUR_SECONDS
COUNTED_MAX = 100
SUMMARY = "summary"
AUDIT, BACKUP = "audit", "backup"


class Finding(Struct, frozen=True):
    """A reason for an alert.

    Args:
        kind: one word, such as "disk".
        text: one sentence for the operators, without personal data.
        seen_at: the time of an event, which is reported once; 0 for a state, which is reported
            again while it lasts.
    """

    kind: str
    text: str
    seen_at: int = 0


class Looked(Struct, frozen=True):
    """Newest backup and audit in the database, for the metrics."""

    backup: UpkeepRow | None
    audit: UpkeepRow | None


class Alerts:
    """Finds reasons for alerts in the database, and puts e-mails into the outbox.

    Args:
        emails: the outbox.
        receivers: the addresses; without any, nothing is sent.
        name: the name of the service.
        summary_hour: the hour of the daily summary, in UTC.
    """

    def __init__(
        self,
        context: Context,
        emails: Outbox,
        receivers: Sequence[str],
        name: str,
        summary_hour: int,
    ) -> None:
        self._store = context.store
        self._now = context.now
        self._emails = emails
        self._receivers = tuple(receivers)
        self._name = name
        self._summary_hour = summary_hour

    async def look(self, of_machine: Sequence[Finding]) -> Looked:
        """Send the alerts and the summary that are due; return the upkeep.

        Args:
            of_machine: the findings about this machine.

        Raises:
            StoreError: they are sent later.
        """
        looked, findings = await self._store.read(self._find)
        if self._receivers:
            for each in (*findings, *of_machine):
                await self._store.write(self._send, each)
            await self._store.write(self._summarise, looked)
            self._emails.wake()
        return looked

    async def _find(self, tx: Transaction) -> tuple[Looked, list[Finding]]:
        now, found = self._now(), list[Finding]()
        looked = Looked(await queries.upkeep(tx, BACKUP), await queries.upkeep(tx, AUDIT))
        disputed, barred = await queries.newest_dispute(tx), await queries.newest_barred(tx)
        if disputed is not None:
            text = "A buyer disputes a job. Decide about it: proxyd jobs disputes"
            found.append(Finding("dispute", text, disputed))
        if barred is not None:
            text = "A device was barred as an exit. Look at it: proxyd exits list"
            found.append(Finding("exit", text, barred))
        if looked.audit is not None and not looked.audit.has_passed:
            text = "The newest audit found a difference. Look at it: proxyd ledger audit"
            found.append(Finding(AUDIT, text))
        if looked.backup is not None and now - looked.backup.at > BACKUP_MAX_SECONDS:
            hours = (now - looked.backup.at) // HOUR_SECONDS
            found.append(Finding(BACKUP, f"The newest backup is {hours} hours old."))
        return looked, found

    async def _send(self, tx: Transaction, finding: Finding) -> None:
        now = self._now()
        before = await queries.find(tx, finding.kind)
        if before is not None and finding.seen_at and finding.seen_at <= before.seen_at:
            return
        row = AlertRow(finding.kind, now, finding.seen_at, finding.text)
        if await self._claim(tx, row, quiet_since=now - QUIET_SECONDS):
            await self._put(tx, f"alert {finding.kind}", f"alert: {finding.kind}", finding.text)

    async def _summarise(self, tx: Transaction, looked: Looked) -> None:
        now = self._now()
        due = now // DAY_SECONDS * DAY_SECONDS + self._summary_hour * HOUR_SECONDS
        if now < due:
            return
        before = await queries.find(tx, SUMMARY)
        if before is not None and due <= before.sent_at <= now + CLOCKS_DIFFER_SECONDS:
            return
        if await self._claim(tx, AlertRow(SUMMARY, now, 0, ""), quiet_since=due - 1):
            await self._put(tx, SUMMARY, "daily summary", await self._summary(tx, looked, now))

    async def _claim(self, tx: Transaction, row: AlertRow, *, quiet_since: int) -> bool:
        not_after = row.sent_at + CLOCKS_DIFFER_SECONDS
        return await queries.claim(tx, row, quiet_since=quiet_since, not_after=not_after)

    async def _summary(self, tx: Transaction, looked: Looked, now: int) -> str:
        """Return the text of the daily summary, without personal data."""
        head = await log_queries.find_head(tx)
        acts = await log_queries.shown(tx, limit=COUNTED_MAX + 1)
        count = sum(1 for each in acts if each.at >= now - DAY_SECONDS)
        disputes = len(await reviews.disputed(tx, limit=COUNTED_MAX + 1))
        sent = [each for each in await queries.since(tx, now - DAY_SECONDS) if each.kind != SUMMARY]
        lines = [
            *_head(head),
            "Keep this e-mail: a log that was rewritten later contradicts it.",
            "",
            f"Acts of the staff in 24 hours: {_count(count)}",
            f"Disputes that wait for a decision: {_count(disputes)}",
            f"Newest backup: {_upkeep(looked.backup, now)}",
            f"Newest audit: {_upkeep(looked.audit, now)}",
            "",
            "Alerts in 24 hours:" if sent else "No alerts in 24 hours.",
            *(f"  {each.kind}: {each.detail}" for each in sent),
        ]
        return "\n".join(lines)

    async def _put(self, tx: Transaction, key: str, subject: str, text: str) -> None:
        for address in self._receivers:
            message = Message(address, f"{self._name}: {subject}", f"{text}\n")
            item = self._emails.item(
                f"{key} {address}",
                share=mail_share(address),
                payload=encoded(message),
                lifetime_seconds=LIFETIME_SECONDS,
            )
            await outbox_queries.put(tx, item)


def _head(head: HeadRow | None) -> list[str]:
    if head is None:
        return ["The head of the staff's log is missing: run proxyd ledger audit."]
    return [
        "The log of the staff ends with:",
        f"  number {head.number}",
        f"  hash   {head.hash or '(empty)'}",
    ]


def _count(number: int) -> str:
    return f"more than {COUNTED_MAX}" if number > COUNTED_MAX else str(number)


def _upkeep(row: UpkeepRow | None, now: int) -> str:
    if row is None:
        return "none is recorded"
    outcome = "" if row.has_passed else ", it failed"
    return f"{(now - row.at) // HOUR_SECONDS} hours ago{outcome}"
