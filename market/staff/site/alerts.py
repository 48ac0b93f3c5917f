"""Messages to the operators: alerts, each kind once in six hours, and a daily summary.

Each goes to the e-mail addresses and to the webhook of the settings. The outbox of the webhook has
the bodies; `proxyd/outbound/alert_hook.py` sends them.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from market.accounts.mail import Message, encoded, mail_share
from market.accounts.outbox import Outbox
from market.events.catalogue import timestamp
from market.events.context import Context
from market.money.money import as_decimal
from storage.accounts import outbox as outbox_queries
from storage.engines.store import Transaction
from storage.payments import watching
from storage.payments.watching import NOTHING, WaitingRow
from storage.payouts import batches
from storage.site import alerts as queries
from storage.site.alerts import NO_WORK, AlertRow, MovedRow, UpkeepRow, WorkRow
from storage.staff.base import log as log_queries
from storage.staff.base.log import HeadRow
from storage.staff.members import rescues

HOUR_SECONDS = 3_600
DAY_SECONDS = 86_400
QUIET_SECONDS = 6 * HOUR_SECONDS
LIFETIME_SECONDS = DAY_SECONDS
# Clocks of several daemons differ by less.
CLOCKS_DIFFER_SECONDS = HOUR_SECONDS
BACKUP_MAX_SECONDS = 26 * HOUR_SECONDS
# A decision about a dispute is overdue after this time.
DISPUTE_MAX_SECONDS = DAY_SECONDS
COUNTED_MAX = 100
SUMMARY = "summary"
AUDIT, BACKUP = "audit", "backup"
# The channel of the outbox for the webhook, and the share that counts its items.
HOOK_CHANNEL, HOOK_SHARE = "alerts", "alerts"


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
    """Newest backup and audit, open rescues, money and work that wait, for the metrics."""

    backup: UpkeepRow | None
    audit: UpkeepRow | None
    rescues: int = 0
    money: WaitingRow = NOTHING
    work: WorkRow = NO_WORK


class HookBody(Struct, frozen=True, rename={"kind": "type"}):
    """The body of a message to the webhook: `service.alert` or `service.summary`."""

    kind: str
    timestamp: str
    data: dict[str, str]


class Alerts:
    """Finds reasons for alerts in the database, and puts messages into the outboxes.

    Args:
        emails: the outbox of e-mails.
        receivers: the addresses of e-mails.
        name: the name of the service.
        summary_hour: the hour of the daily summary, in UTC.
        hook: the outbox of the webhook; None without a webhook.
    """

    def __init__(
        self,
        context: Context,
        emails: Outbox,
        receivers: Sequence[str],
        name: str,
        summary_hour: int,
        hook: Outbox | None = None,
    ) -> None:
        self._store = context.store
        self._now = context.now
        self._emails = emails
        self._hook = hook
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
        if self._receivers or self._hook is not None:
            for each in (*findings, *of_machine):
                await self._store.write(self._send, each)
            await self._store.write(self._summarise, looked)
            self._emails.wake()
            if self._hook is not None:
                self._hook.wake()
        return looked

    async def _find(self, tx: Transaction) -> tuple[Looked, list[Finding]]:
        now, found = self._now(), list[Finding]()
        waiting = await rescues.waiting(tx)
        looked = Looked(
            await queries.upkeep(tx, BACKUP),
            await queries.upkeep(tx, AUDIT),
            len(waiting),
            await watching.waiting(tx, now),
            await queries.waiting_work(tx, now, most=COUNTED_MAX + 1),
        )
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
        if waiting:
            text = (
                "An operator was rescued at the machine. Another operator acknowledges it: "
                "proxyd staff rescues"
            )
            found.append(Finding("rescue", text))
        found += [*_of_money(looked.money), *await self._overdue(tx, now)]
        return looked, found

    async def _overdue(self, tx: Transaction, now: int) -> list[Finding]:
        found = []
        oldest = await queries.oldest_dispute(tx)
        if oldest is not None and now - oldest > DISPUTE_MAX_SECONDS:
            hours = (now - oldest) // HOUR_SECONDS
            text = f"A dispute has waited for {hours} hours. Decide about it: proxyd jobs disputes"
            found.append(Finding("dispute_overdue", text))
        due = await queries.first_due_appeal(tx)
        if due is not None and due < now:
            text = "An appeal is overdue. Decide about it: proxyd case list appeal --open"
            found.append(Finding("appeal_overdue", text))
        due = await queries.first_due_ticket(tx)
        if due is not None and due < now:
            text = "A ticket is overdue. Answer or close it: proxyd ticket list"
            found.append(Finding("ticket_overdue", text))
        if await batches.doubtful(tx, limit=1):
            text = "A batch of payouts may have been sent or not. Decide: proxyd payouts doubtful"
            found.append(Finding("payout_doubtful", text))
        return found

    async def _send(self, tx: Transaction, finding: Finding) -> None:
        now = self._now()
        before = await queries.find(tx, finding.kind)
        if before is not None and finding.seen_at and finding.seen_at <= before.seen_at:
            return
        row = AlertRow(finding.kind, now, finding.seen_at, finding.text)
        if await self._claim(tx, row, quiet_since=now - QUIET_SECONDS):
            await self._put(tx, f"alert {finding.kind}", f"alert: {finding.kind}", finding.text)
            await self._put_hook(tx, "alert", finding.kind, finding.text)

    async def _summarise(self, tx: Transaction, looked: Looked) -> None:
        now = self._now()
        due = now // DAY_SECONDS * DAY_SECONDS + self._summary_hour * HOUR_SECONDS
        if now < due:
            return
        before = await queries.find(tx, SUMMARY)
        if before is not None and due <= before.sent_at <= now + CLOCKS_DIFFER_SECONDS:
            return
        if await self._claim(tx, AlertRow(SUMMARY, now, 0, ""), quiet_since=due - 1):
            text = await self._summary(tx, looked, now)
            await self._put(tx, SUMMARY, "daily summary", text)
            await self._put_hook(tx, SUMMARY, SUMMARY, text)

    async def _claim(self, tx: Transaction, row: AlertRow, *, quiet_since: int) -> bool:
        not_after = row.sent_at + CLOCKS_DIFFER_SECONDS
        return await queries.claim(tx, row, quiet_since=quiet_since, not_after=not_after)

    async def _summary(self, tx: Transaction, looked: Looked, now: int) -> str:
        """Return the text of the daily summary, without personal data."""
        head = await log_queries.find_head(tx)
        acts = await log_queries.shown(tx, limit=COUNTED_MAX + 1)
        count = sum(1 for each in acts if each.at >= now - DAY_SECONDS)
        moved = await queries.moved(tx, now - DAY_SECONDS, limit=COUNTED_MAX)
        sent = [each for each in await queries.since(tx, now - DAY_SECONDS) if each.kind != SUMMARY]
        lines = [
            *_head(head),
            "Keep this e-mail: a log that was rewritten later contradicts it.",
            "",
            f"Acts of the staff in 24 hours: {_count(count)}",
            f"Disputes that wait for a decision: {_count(looked.work.disputes)}",
            f"Appeals that wait for a decision: {_count(looked.work.appeals)}",
            f"Acts that wait for a second person: {_count(looked.work.approvals)}",
            f"Open complaints: {_count(looked.work.tickets)}",
            (
                f"Payments that are open: {looked.money.open_payments}; "
                f"doubtful ones: {looked.money.doubtful_payments}; "
                f"disputed at their banks: {looked.money.disputes}"
            ),
            (
                f"Payouts that wait for a decision: {looked.money.payouts}; "
                f"after the promised time: {looked.money.late_payouts}"
            ),
            f"Newest backup: {_upkeep(looked.backup, now)}",
            f"Newest audit: {_upkeep(looked.audit, now)}",
            f"Rescues that no other operator has acknowledged: {looked.rescues}",
            "",
            "Money that the staff moved in 24 hours:" if moved else "The staff moved no money.",
            *(f"  {_moved(each)}" for each in moved),
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

    async def _put_hook(self, tx: Transaction, kind: str, name: str, text: str) -> None:
        if self._hook is None:
            return
        data = {"kind": name, "service": self._name, "text": text}
        body = HookBody(f"service.{kind}", timestamp(self._now()), data)
        item = self._hook.item(
            f"{kind} {name}",
            share=HOOK_SHARE,
            payload=msgspec.json.encode(body),
            lifetime_seconds=LIFETIME_SECONDS,
        )
        await outbox_queries.put(tx, item)


def _of_money(money: WaitingRow) -> list[Finding]:
    """Return the findings about payments and payouts."""
    found = []
    if money.doubtful_payments:
        text = "A payment is doubtful, and not credited. Decide about it: proxyd payments doubtful"
        found.append(Finding("payment_doubtful", text))
    if money.newest_dispute:
        text = "The bank of a payer disputes a payment. Answer at the provider until its time ends."
        found.append(Finding("payment_dispute", text, money.newest_dispute))
    if money.late_payouts:
        text = "A payout waits after its promised time. Decide about it: proxyd payouts list"
        found.append(Finding("payout_late", text))
    return found


def _moved(row: MovedRow) -> str:
    """Return a line about an author; the address of a member, or a user of the machine."""
    author = row.email or row.author
    given, taken = as_decimal(row.given), as_decimal(row.taken)
    return f"{author}: {row.acts} acts, {given} {row.currency} given, {taken} taken"


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
