"""E-mails to the operators: once in six hours of each kind, and a daily summary."""

import json
from collections.abc import Sequence

import pytest
from support.market.jobs import on, specified
from support.market.market import SEALING, Market
from support.market.payment_rows import payment_row
from support.market.payouts import payouts_in_each_state
from support.market.staff import ROOT, acting, member
from support.market.staff_money import LIMITS, corrected
from support.market.staff_money import NOTHING as NOTHING_ALONE

from market.accounts.mail import Message, decoded
from market.accounts.outbox import Outbox
from market.money.money import MICRO, Currency
from market.staff.abuse import tickets
from market.staff.abuse.tickets import Category, Facts
from market.staff.base.roles import Role
from market.staff.finding import users
from market.staff.money import judging, money
from market.staff.money.approvals import WAITS_SECONDS
from market.staff.money.judging import Verdict
from market.staff.site.alerts import HOOK_CHANNEL, Alerts, Finding
from storage.engines.store import Transaction
from storage.payments import payments as payment_queries
from storage.payments.watching import NOTHING
from storage.site import alerts as queries
from storage.site.alerts import NO_WORK, WorkRow
from tests.market.staff.money.test_judging import disputed

HOUR, DAY = 3_600, 86_400
DISK = Finding("disk", "The disk has 3 % left.")


def made(market: Market, receivers: Sequence[str] = ("olga@example.com",)) -> Alerts:
    market.clock.now = market.clock.now // DAY * DAY  # six hours before the summary
    return Alerts(market.context, market.emails, receivers, "Ada's", 6)


async def sent(market: Market) -> list[Message]:
    """Return the waiting e-mails, and delete them."""
    found = []
    for row in await market.emails.due(again=False, limit=100):
        item = await market.emails.claim(row)
        assert item is not None
        found.append(decoded(item.payload))
        await market.emails.done(item)
    return found


@pytest.mark.both_engines
async def test_a_state_is_reported_once_in_six_hours(market: Market) -> None:
    alerts = made(market, ("olga@example.com", "omar@example.com"))
    await alerts.look([DISK])
    mails = await sent(market)
    assert sorted(mail.to for mail in mails) == ["olga@example.com", "omar@example.com"]
    assert mails[0].subject == "Ada's: alert: disk"
    for _ in range(5):
        market.clock.now += HOUR - 1
        await alerts.look([DISK])
    assert await sent(market) == []
    await alerts.look([DISK, Finding("certificate", "It expires in 3 days.")])
    assert {mail.subject for mail in await sent(market)} == {"Ada's: alert: certificate"}
    market.clock.now += HOUR + 5
    await alerts.look([DISK])
    assert any(mail.subject == "Ada's: alert: disk" for mail in await sent(market))


async def test_work_that_waits_for_the_staff_is_counted(market: Market) -> None:
    alerts = made(market)
    assert (await alerts.look([])).work == NO_WORK
    worker, buyer = await market.person(), await market.person(credit="10")
    job_id = await specified(market, buyer)
    await market.jobs.complete(await on(market, job_id, worker), job_id, "done")
    await market.reviews.dispute(buyer, job_id, "empty")
    await tickets.open_ticket(market.context, ROOT, Category.SCAN, Facts(), "a scan")
    await corrected(market, ROOT, worker, 1, limits=NOTHING_ALONE)
    assert (await alerts.look([])).work == WorkRow(approvals=1, tickets=1, disputes=1, appeals=0)
    market.clock.now += WAITS_SECONDS
    assert (await alerts.look([])).work.approvals == 0


@pytest.mark.both_engines
async def test_a_clock_that_was_wrong_silences_no_alert(market: Market) -> None:
    alerts, right = made(market), market.clock.now + 6 * HOUR
    market.clock.now = right + 400 * DAY
    await alerts.look([DISK])
    assert len(await sent(market)) == 2
    market.clock.now = right
    for _ in range(2):
        await alerts.look([DISK])
    assert [mail.subject for mail in await sent(market)] == [
        "Ada's: alert: disk",
        "Ada's: daily summary",
    ]


async def test_an_event_is_reported_once(market: Market) -> None:
    alerts = made(market)
    for seen_at in (5, 5, 9):
        await alerts.look([Finding("exit", "A device was barred.", seen_at)])
        market.clock.now += 2 * HOUR
    assert len(await sent(market)) == 1  # the second event waits for six hours to pass
    market.clock.now += HOUR // 2
    await alerts.look([Finding("exit", "A device was barred.", 9)])
    await sent(market)
    market.clock.now += 7 * HOUR
    await alerts.look([Finding("exit", "A device was barred.", 9)])
    assert [mail for mail in await sent(market) if "exit" in mail.subject] == []


async def test_upkeep_is_reported(market: Market) -> None:
    alerts = made(market)
    assert await alerts.look([]) == (await alerts.look([]))
    assert await sent(market) == []
    for name, has_passed in (("audit", False), ("backup", True)):
        await market.store.write(queries.note_upkeep, name, market.clock.now, has_passed=has_passed)
    looked = await alerts.look([])
    assert looked.audit is not None
    assert (looked.audit.has_passed, len(await sent(market))) == (0, 1)
    market.clock.now += 27 * HOUR
    await alerts.look([])
    subjects = {mail.subject for mail in await sent(market)}
    assert {"Ada's: alert: backup", "Ada's: alert: audit"} <= subjects


@pytest.mark.both_engines
async def test_the_summary_has_the_head_of_the_log(market: Market) -> None:
    alerts = made(market)
    await alerts.look([DISK])
    await users.note(market.context, ROOT, await market.person(), "called at home")
    await sent(market)
    market.clock.now += 6 * HOUR
    for _ in range(2):
        await alerts.look([])
    [mail] = await sent(market)
    assert mail.subject == "Ada's: daily summary"

    async def head(tx: Transaction) -> str | None:
        return await tx.one(str, "SELECT hash FROM staff_log_head")

    assert f"hash   {await market.store.read(head)}" in mail.text
    assert "number 1" in mail.text
    assert "Acts of the staff in 24 hours: 1" in mail.text
    assert "disk: The disk has 3 % left." in mail.text
    assert "called" not in mail.text
    market.clock.now += DAY
    await alerts.look([])
    assert len(await sent(market)) == 1


async def test_the_summary_has_the_money_of_each_author(market: Market) -> None:
    alerts, person = made(market), await market.person()
    finance = acting(await member(market, Role.FINANCE))
    for author, amount, reference in (
        (finance, 20 * MICRO, "a"),
        (finance, -5 * MICRO, "b"),
        (ROOT, 7 * MICRO, "c"),
    ):
        await money.correct(
            market.context,
            author,
            person,
            LIMITS,
            amount=amount,
            currency=Currency.USD,
            reference=reference,
            why="asked",
        )
    await sent(market)
    market.clock.now += 6 * HOUR
    await alerts.look([])
    [mail] = await sent(market)
    lines = [line.strip() for line in mail.text.splitlines()]
    assert "finance@staff.example.com: 2 acts, 20.00 usd given, 5.00 taken" in lines
    assert "unix:root: 1 acts, 7.00 usd given, 0.00 taken" in lines
    assert person not in mail.text
    market.clock.now += DAY
    await alerts.look([])
    [mail] = [each for each in await sent(market) if "summary" in each.subject]
    assert "The staff moved no money." in mail.text


async def test_a_dispute_an_appeal_and_a_ticket_become_overdue(market: Market) -> None:
    alerts = made(market)
    await tickets.open_ticket(market.context, ROOT, Category.ABUSE, Facts(), "Stop it.")
    buyer, worker = [await market.person(credit="100") for _ in range(2)]
    job_id = await specified(market, buyer)
    await market.jobs.complete(await on(market, job_id, worker), job_id, "the result")
    await market.reviews.dispute(buyer, job_id, "it is empty")
    appealed = await disputed(market, buyer, worker)
    await judging.decide(market.context, ROOT, appealed, Verdict(40), LIMITS, "read the log")
    await market.appeals.appeal(buyer, appealed, "nothing was right")
    await sent(market)
    await alerts.look([])
    assert {mail.subject for mail in await sent(market)} == {"Ada's: alert: dispute"}
    market.clock.now += 60 * DAY
    await alerts.look([])
    subjects = {mail.subject for mail in await sent(market)}
    kinds = ("dispute_overdue", "ticket_overdue", "appeal_overdue")
    assert {f"Ada's: alert: {kind}" for kind in kinds} <= subjects


async def test_the_webhook_gets_the_same_list(market: Market) -> None:
    hook = Outbox(market.context, SEALING, HOOK_CHANNEL)
    market.clock.now = market.clock.now // DAY * DAY
    alerts = Alerts(market.context, market.emails, (), "Ada's", 6, hook)
    for _ in range(3):
        await alerts.look([DISK])
        market.clock.now += HOUR
    assert await sent(market) == []
    [row] = await hook.due(again=False, limit=10)
    body = json.loads(hook.opened(row) or b"")
    assert body["type"] == "service.alert"
    assert body["data"] == {"kind": "disk", "service": "Ada's", "text": DISK.text}
    market.clock.now += 4 * HOUR
    await alerts.look([DISK])
    names = {each.item_key for each in await hook.due(again=False, limit=10)}
    assert names == {"alert disk", "summary summary"}


async def test_without_receivers_nothing_is_sent(market: Market) -> None:
    await made(market, ()).look([DISK])
    assert await sent(market) == []


async def test_money_that_waits_is_reported_and_summed_up(market: Market) -> None:
    alerts, user = made(market), await market.person()
    looked = await alerts.look([])
    assert looked.money == NOTHING
    for status in ("open", "doubtful"):
        row = payment_row(market, user, status, MICRO)
        await market.store.write(payment_queries.insert, row)
    payouts = await payouts_in_each_state(market, await market.person())
    assert payouts
    market.clock.now = market.clock.now // DAY * DAY + 30 * DAY
    await sent(market)
    looked = await alerts.look([])
    assert (looked.money.open_payments, looked.money.doubtful_payments) == (1, 1)
    assert looked.money.payouts == looked.money.late_payouts > 0
    subjects = {mail.subject for mail in await sent(market)}
    assert {"Ada's: alert: payment_doubtful", "Ada's: alert: payout_late"} <= subjects
    market.clock.now += 7 * HOUR
    await alerts.look([])
    [summary] = [mail for mail in await sent(market) if mail.subject.endswith("summary")]
    assert "Payments that are open: 1; doubtful ones: 1; disputed at their banks: 0" in summary.text
