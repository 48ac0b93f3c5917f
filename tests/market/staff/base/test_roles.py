"""The matrix of permissions: every operation is tried by every role."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from support.base.cases import cases
from support.market.cases import cases_of, decide, failed_canary
from support.market.exits import exit_device
from support.market.jobs import on, specified
from support.market.leaving import tools
from support.market.market import RULES, Market
from support.market.payment_rows import owe, payment_row
from support.market.payouts import PAYOUT_ACTS
from support.market.staff import FACTORS, PASSWORD, ROOT, acting, member
from support.market.staff_money import (
    LIMITS,
    NOTHING,
    corrected,
    deposited,
    newest_request,
    refunded,
)

from market.accounts.keys import NewKey
from market.accounts.letters import Letters
from market.accounts.scopes import Scope
from market.base.errors import Code, MarketError
from market.files.artifacts import OUTPUT
from market.jobs.outcomes import Outcomes
from market.jobs.postings import NewJob
from market.money.money import GB, MICRO, Currency
from market.staff import rule_stops
from market.staff.abuse import exit_use, tickets
from market.staff.abuse.exit_use import Found, Question
from market.staff.abuse.tickets import Category, Facts, Outcome, State
from market.staff.base.acts import permit
from market.staff.base.callers import StaffScope
from market.staff.base.roles import (
    MATRIX,
    ON_LIVING,
    ON_ONESELF,
    Action,
    Author,
    Machine,
    Member,
    Role,
    require,
)
from market.staff.cases import clawing
from market.staff.cases.base import Decision, Kind
from market.staff.finding import history, search, users
from market.staff.leaving import closing, erasing
from market.staff.members import accounts, attempts, keys, rescue
from market.staff.members.accounts import Created
from market.staff.members.keys import NewStaffKey
from market.staff.members.logins import StaffLogins
from market.staff.members.rescue import Post
from market.staff.money import (
    approvals,
    deposits,
    doubts,
    forgiving,
    job_files,
    judging,
    money,
    payments,
    second_person,
    user_limits,
)
from market.staff.money.judging import Verdict
from market.staff.money.user_limits import NewLimits
from market.staff.site import site
from market.staff.site.site import Publication, TextKind
from market.staff.stopping import stopping, suspending
from storage.engines.store import Transaction
from storage.exits import exits as exit_queries
from storage.files import artifacts as artifact_queries
from storage.files.artifacts import ArtifactRow
from storage.jobs import jobs as job_queries
from storage.payments import payments as payment_queries
from storage.staff.abuse import tickets as ticket_queries
from storage.staff.base.rows import OwnedKeyRow
from storage.staff.stopping import suspending as writes

KEY = NewStaffKey(name="reports", scopes=(StaffScope.READ,), allow_ips=("192.0.2.7",))
# Operations that leave no row in the log.
READS = (
    Action.SEARCH,
    Action.LOG_READ,
    Action.STAFF_LIST,
    Action.MONEY_HISTORY,
    Action.APPROVAL_LIST,
    Action.STAFF_SELF,
    Action.STAFF_ATTEMPTS,
    Action.STAFF_RESCUES,
    Action.STAFF_KEY_LIST,
    Action.SITE_CHECK,
    Action.TICKET_READ,
    Action.RULE_READ,
    Action.PAYOUT_LIST,
    Action.PAYMENT_VIEW,
)
Attempt = Callable[[Market, Author, str, Created], Awaitable[Any]]


def _create(market: Market, author: Author, _user: str, _other: Created) -> Awaitable[Any]:
    return accounts.create(
        market.context,
        market.passwords,
        FACTORS,
        author,
        email="new@staff.example.com",
        password=PASSWORD,
        role=Role.SUPPORT,
        why="hired",
    )


async def _revoke(market: Market, author: Author, other: Created) -> OwnedKeyRow:
    key = (await keys.listed(market.context, ROOT))[0]
    return await keys.revoke(market.context, author, key.key.id, "over")


def letters_of(market: Market) -> Letters:
    return Letters(market.emails, "https://app.example.com")


def _suspend(market: Market, author: Author, user: str) -> Awaitable[Any]:
    return suspending.suspend(
        market.context,
        letters_of(market),
        author,
        user,
        parts=suspending.ALL,
        ends_at=market.clock.now + 3_600,
        shown="spam",
        why="a ticket",
    )


async def _on_a_session(market: Market, author: Author, act: Callable[..., Any]) -> None:
    buyer = await market.person(usd="2")
    bought = await market.bandwidth.buy(buyer, quota_bytes=GB, price_per_gb=None)
    if act is stopping.let_session_go:
        await market.store.write(writes.set_halted, bought.session_id, 1, "a test")
    texts = () if act is stopping.show_session else ("a ticket",)
    await act(market.context, author, bought.session_id, *texts)


async def _revoke_key(market: Market, author: Author) -> None:
    owner = await market.person()
    key = await market.keys.create(owner, NewKey(name="k", scopes=(Scope.USAGE_READ,)))
    await stopping.revoke_key(market.context, letters_of(market), author, key.row.id, "a ticket")


async def _on_a_device(market: Market, author: Author, act: Callable[..., Any]) -> None:
    device = await exit_device(market)
    if act is stopping.pardon_device:
        await market.store.write(exit_queries.bar, device.id, 1)
    await act(market.context, author, device_id=device.id, why="a ticket")


async def _cancel_job(market: Market, author: Author) -> None:
    buyer = await market.person(credit="2")
    job = await market.jobs.create(buyer, NewJob("a title", "script", MICRO, 1, "", ""))
    outcomes = Outcomes(market.context, RULES.jobs, market.bounds)
    await stopping.cancel_job(market.context, outcomes, author, job, "a ticket")


async def prepare(market: Market, action: Action, other: Created, user: str) -> None:
    """Lock a member, suspend the user or ask for an act, where an operation is about that."""
    if action in (Action.APPROVAL_APPROVE, Action.APPROVAL_REFUSE):
        await corrected(market, Machine("asker"), await market.person(), 1, limits=NOTHING)
    if action is Action.USER_RESUME:
        await _suspend(market, ROOT, user)
    rows = {each.id: each for each in await accounts.listed(market.context, ROOT)}
    if action is Action.STAFF_UNLOCK and rows[other.id].locked_at is None:
        await accounts.lock(market.context, ROOT, other.id, "left")
    if action is Action.STAFF_ROLE:
        with suppress(MarketError):  # of the role before
            await accounts.set_role(market.context, ROOT, other.id, Role.FINANCE, "moved")
    if action is Action.STAFF_KEY_REVOKE:
        await keys.create(market.context, ROOT, other.id, KEY, "reports")
    await _prepare_payments(market, action, user)
    if action in (Action.STAFF_RESCUE, Action.STAFF_ACKNOWLEDGE):
        with suppress(MarketError):  # of the case before
            await member(market, Role.OPERATOR, RESCUED)
    if action is Action.STAFF_ACKNOWLEDGE:
        await _rescue(market, ROOT)
    if action.startswith("ticket.") or action is Action.SEARCH_EXIT:
        await complain(market, ROOT)


async def _prepare_payments(market: Market, action: Action, user: str) -> None:
    if action in (Action.PAYMENT_VIEW, Action.PAYMENT_LOOK):
        await _payment(market, user, "open")
    if action in (Action.PAYMENT_CREDIT, Action.PAYMENT_GIVE_UP):
        await _payment(market, user, "doubtful")
    if action is Action.DEBT_FORGIVE:
        await owe(market, user)


async def _rescue(market: Market, author: Author) -> None:
    logins = StaffLogins(market.context, market.passwords, FACTORS, b"k" * 32)
    name = f"{RESCUED}@staff.example.com"
    await rescue.rescue(market.context, logins, Post(market.emails, "x"), author, name, "all lost")


async def _acknowledge(market: Market, author: Author) -> None:
    newest = (await rescue.listed(market.context, ROOT))[0]
    await rescue.acknowledge(market.context, author, newest.id, "seen")


async def _refund(market: Market, author: Author, user: str, _other: Created) -> None:
    deposit = await deposited(market, user, 10)
    await refunded(market, author, user, 1, deposit=deposit)


async def _look(market: Market, author: Author, user: str, _other: Created) -> None:
    await judging.evidence(market.context, author, await _disputed(market, user))


async def _decide(market: Market, author: Author, user: str, _other: Created) -> None:
    job_id = await _disputed(market, user)
    await judging.decide(market.context, author, job_id, Verdict(0), LIMITS, "read the log")


async def _open_file(market: Market, author: Author, user: str, _other: Created) -> None:
    job_id, file_id = await _disputed(market, user), market.identifiers.new()
    job = await market.store.read(job_queries.find, job_id)
    assert job is not None

    async def leave(tx: Transaction) -> None:
        digest = file_id.replace("-", "") * 2
        await artifact_queries.insert_content(
            tx, content_id=file_id, digest=digest, size_bytes=1, is_checked=True
        )
        row = ArtifactRow(
            file_id, job.user_id, job_id, 1, OUTPUT, "a", digest, 1, "", file_id, 1, 1, None
        )
        await artifact_queries.insert(tx, row)

    await market.store.write(leave)
    assert (await job_files.opened(market.context, author, job_id, file_id)).id == file_id


async def _judge(
    market: Market, author: Author, user: str, decision: Decision | None = None
) -> None:
    """Look at a failed check of a user's exit, or decide about it."""
    _, case_id = await failed_canary(market, user)
    if decision is None:
        await cases_of(market).shown(author, Kind.CANARY, case_id)
    else:
        await decide(market, Kind.CANARY, case_id, decision, author)


async def _disputed(market: Market, worker: str) -> str:
    """Have a job done by a user, and dispute it."""
    buyer = await market.person(credit="10")
    job_id = await specified(market, buyer)
    await market.jobs.complete(await on(market, job_id, worker), job_id, "done")
    await market.reviews.dispute(buyer, job_id, "empty")
    return job_id


async def _approve(market: Market, author: Author, _user: str, _other: Created) -> None:
    await second_person.approve(market.context, author, await newest_request(market))


async def _refuse(market: Market, author: Author, _user: str, _other: Created) -> None:
    await second_person.refuse(market.context, author, await newest_request(market), "no")


async def complain(market: Market, author: Author) -> Any:
    return await tickets.open_ticket(market.context, author, Category.SCAN, Facts(), "a scan")


async def on_newest(
    change: Callable[..., Awaitable[Any]], market: Market, author: Author, *values: object
) -> Any:
    number = await market.store.read(ticket_queries.last_number)
    return await change(market.context, author, number, *values)


async def nothing(_: Question) -> Found:
    return Found((), ())


async def _payment(market: Market, user: str, status: str) -> None:
    """Add a payment that waits for its provider, or for the operator."""
    row = payment_row(market, user, status, MICRO)
    await market.store.write(payment_queries.insert, row)


async def _newest_payment(market: Market, user: str) -> str:
    return (await market.store.read(payment_queries.page, user, before="", limit=1))[0].id


async def _look_at_payment(market: Market, author: Author, user: str) -> None:
    await payments.shown(market.context, author, await _newest_payment(market, user))


async def _credit(market: Market, author: Author, user: str) -> None:
    payment = await _newest_payment(market, user)
    await doubts.credit(market.context, author, payment, LIMITS, why="the bank wrote")


async def _give_up(market: Market, author: Author, user: str) -> None:
    await doubts.give_up(market.context, author, await _newest_payment(market, user), "no answer")


async def _forgive(market: Market, author: Author, user: str) -> None:
    await forgiving.forgive(
        market.context,
        author,
        user,
        LIMITS,
        amount=MICRO,
        reference=market.identifiers.new(),
        why="a fraud",
    )


async def _hasten(market: Market, author: Author, user: str) -> None:
    await payments.look(market.context, author, await _newest_payment(market, user), "a question")


RESCUED = "rescued"
# How each operation is tried: by an author, about a user, or on another member.
ATTEMPTS: dict[Action, Attempt] = {
    Action.SEARCH: lambda market, author, user, other: search.who(market.context, author, "ada"),
    Action.SEARCH_ADDRESS: lambda market, author, user, other: search.who(
        market.context, author, "203.0.113.9"
    ),
    Action.SEARCH_EMAIL: lambda market, author, user, other: search.who(
        market.context, author, "@example.com"
    ),
    Action.USER_VIEW: lambda market, author, user, other: users.view(market.context, author, user),
    Action.USER_REVEAL: lambda market, author, user, other: users.reveal(
        market.context, author, user, "the user telephones"
    ),
    Action.USER_NOTE: lambda market, author, user, other: users.note(
        market.context, author, user, "called"
    ),
    Action.LOG_READ: lambda market, author, user, other: history.read(
        market.context, author, limit=1
    ),
    Action.USER_EXPORT: lambda market, author, user, other: closing.export(
        market.context, author, user
    ),
    Action.USER_CLOSE: lambda market, author, user, other: closing.close(
        market.context, letters_of(market), LIMITS, author, user, waives=True, why="asked"
    ),
    Action.USER_ERASE: lambda market, author, user, other: erasing.erase(
        market.context,
        tools(market),
        author,
        user,
        waives=True,
        needs_second=True,
        limits=LIMITS,
        why="asked",
    ),
    Action.USER_SUSPEND: lambda market, author, user, other: _suspend(market, author, user),
    Action.USER_RESUME: lambda market, author, user, other: suspending.resume(
        market.context, letters_of(market), author, user, why="resolved"
    ),
    Action.SESSION_VIEW: lambda market, author, user, other: _on_a_session(
        market, author, stopping.show_session
    ),
    Action.SESSION_HALT: lambda market, author, user, other: _on_a_session(
        market, author, stopping.halt_session
    ),
    Action.SESSION_GO: lambda market, author, user, other: _on_a_session(
        market, author, stopping.let_session_go
    ),
    Action.SESSION_END: lambda market, author, user, other: _on_a_session(
        market, author, stopping.begin_end
    ),
    Action.KEY_REVOKE: lambda market, author, user, other: _revoke_key(market, author),
    Action.DEVICE_BAR: lambda market, author, user, other: _on_a_device(
        market, author, stopping.bar_device
    ),
    Action.DEVICE_PARDON: lambda market, author, user, other: _on_a_device(
        market, author, stopping.pardon_device
    ),
    Action.DEVICE_CLAW_BACK: lambda market, author, user, other: _on_a_device(
        market, author, partial(clawing.claw_back, limits=NOTHING)
    ),
    Action.JOB_CANCEL: lambda market, author, user, other: _cancel_job(market, author),
    Action.STAFF_LIST: lambda market, author, user, other: accounts.listed(market.context, author),
    Action.STAFF_CREATE: _create,
    Action.STAFF_ROLE: lambda market, author, user, other: accounts.set_role(
        market.context, author, other.id, Role.SUPPORT, "moved"
    ),
    Action.STAFF_LOCK: lambda market, author, user, other: accounts.lock(
        market.context, author, other.id, "left"
    ),
    Action.STAFF_UNLOCK: lambda market, author, user, other: accounts.unlock(
        market.context, author, other.id, "came back"
    ),
    Action.MONEY_REFUND: _refund,
    Action.MONEY_CORRECT: lambda market, author, user, other: corrected(market, author, user, 1),
    Action.MONEY_DEPOSIT: lambda market, author, user, other: deposits.deposit(
        market.context,
        author,
        user,
        LIMITS,
        amounts={Currency.USD: MICRO},
        reference=market.identifiers.new(),
    ),
    Action.MONEY_HISTORY: lambda market, author, user, other: money.history(
        market.context, author, user, limit=1
    ),
    Action.APPROVAL_LIST: lambda market, author, user, other: approvals.listed(
        market.context, author, limit=1
    ),
    Action.APPROVAL_APPROVE: _approve,
    Action.APPROVAL_REFUSE: _refuse,
    Action.JOB_VIEW: _look,
    Action.JOB_FILE: _open_file,
    Action.JOB_DECIDE: _decide,
    Action.CASE_VIEW: lambda market, author, user, other: _judge(market, author, user),
    Action.CASE_DECIDE: lambda market, author, user, other: _judge(
        market, author, user, Decision.UPHELD
    ),
    Action.USER_LIMIT: lambda market, author, user, other: user_limits.change(
        market.context, author, user, NewLimits(sessions=1), "agreed"
    ),
    Action.USER_PRICE: lambda market, author, user, other: user_limits.change(
        market.context, author, user, NewLimits(price_percent=90), "agreed"
    ),
    **{
        action: lambda market, author, user, other, act=act: act(market, author, user)
        for action, act in PAYOUT_ACTS.items()
    },
    Action.STAFF_RESET_FACTOR: lambda market, author, user, other: accounts.reset_factor(
        market.context, FACTORS, author, other.id, "a new telephone"
    ),
    Action.SITE_CHECK: lambda market, author, user, other: site.published(market.context, author),
    Action.SITE_INVITE: lambda market, author, user, other: site.invite(
        market.context, author, uses=1, days=1, why="a friend"
    ),
    Action.SITE_PUBLISH: lambda market, author, user, other: site.publish(
        market.context, author, Publication(TextKind.IMPRINT, "en", "Be kind.", 0), "the first"
    ),
    Action.STATUS_NOTICE: lambda market, author, user, other: site.notify(
        market.context, author, severity="info", title="Work tonight", body="", why="planned"
    ),
    Action.STAFF_SELF: lambda market, author, user, other: market.store.read(
        permit, author, Action.STAFF_SELF
    ),
    Action.STAFF_ATTEMPTS: lambda market, author, user, other: attempts.listed(
        market.context, author, limit=1
    ),
    Action.PAYMENT_VIEW: lambda market, author, user, other: _look_at_payment(market, author, user),
    Action.PAYMENT_LOOK: lambda market, author, user, other: _hasten(market, author, user),
    Action.PAYMENT_CREDIT: lambda market, author, user, other: _credit(market, author, user),
    Action.PAYMENT_GIVE_UP: lambda market, author, user, other: _give_up(market, author, user),
    Action.DEBT_FORGIVE: lambda market, author, user, other: _forgive(market, author, user),
    Action.STAFF_RESCUE: lambda market, author, user, other: _rescue(market, author),
    Action.STAFF_RESCUES: lambda market, author, user, other: rescue.listed(market.context, author),
    Action.STAFF_ACKNOWLEDGE: lambda market, author, user, other: _acknowledge(market, author),
    Action.STAFF_KEY_CREATE: lambda market, author, user, other: keys.create(
        market.context, author, other.id, KEY, "reports"
    ),
    Action.STAFF_KEY_LIST: lambda market, author, user, other: keys.listed(market.context, author),
    Action.STAFF_KEY_REVOKE: lambda market, author, user, other: _revoke(market, author, other),
    Action.SEARCH_EXIT: lambda market, author, user, other: exit_use.look_up(
        market.context, author, Question("192.0.2.1", 1_000), 1, nothing
    ),
    Action.TICKET_OPEN: lambda market, author, user, other: complain(market, author),
    Action.TICKET_READ: lambda market, author, user, other: on_newest(tickets.show, market, author),
    Action.TICKET_MOVE: lambda market, author, user, other: on_newest(
        tickets.move, market, author, State.CONTACTED, "wrote to the customer"
    ),
    Action.TICKET_ANSWER: lambda market, author, user, other: on_newest(
        tickets.answer, market, author, "we have acted"
    ),
    Action.TICKET_CLOSE: lambda market, author, user, other: on_newest(
        tickets.close, market, author, Outcome.UNFOUNDED, "no abuse"
    ),
    Action.RULE_READ: lambda market, author, user, other: rule_stops.trial(
        market.context, author, {}
    ),
    Action.TICKET_LEGAL: lambda market, author, user, other: on_newest(
        tickets.move, market, author, State.LEGAL, "a court asks"
    ),
}


async def dump(market: Market) -> dict[str, list[Any]]:
    """Return the rows of the tables that staff write."""

    async def read(tx: Transaction) -> dict[str, list[Any]]:
        return {
            table: sorted(
                await tx.all(lambda *row: row, f"SELECT {columns} FROM {table}"), key=repr
            )
            for table, columns in (
                ("staff", "id, role, locked_at, sealed_factor"),
                ("staff_recovery", "staff_id, code_hash, used_at"),
                ("staff_log", "number, action, staff_id, unix_user"),
                ("staff_log_head", "number"),
                ("texts", "id, body"),
                ("staff_keys", "id, revoked_at"),
                ("tickets", "number, state, user_id"),
            )
        }

    return await market.store.read(read)


def test_every_operation_has_a_row_and_an_attempt() -> None:
    assert set(MATRIX) == set(Action)
    assert set(ATTEMPTS) == set(Action) - ON_ONESELF


def test_operators_may_do_everything_but_what_needs_the_machine() -> None:
    needs_machine = {action for action, roles in MATRIX.items() if Role.OPERATOR not in roles}
    assert needs_machine == {Action.STAFF_RESCUE}


async def subjects(market: Market, action: Action) -> tuple[str, Created]:
    """Add the user and the member that an operation is about.

    An hour has passed since those of the operation before: the number of new accounts is limited.
    """
    market.clock.now += 3_600
    return await market.person(), await member(market, Role.SUPPORT, f"other.{action}")


@pytest.fixture
async def authors(market: Market) -> dict[Role, Member]:
    """Begin with a member of each role."""
    return {role: acting(await member(market, role)) for role in Role}


@cases("action", sorted(set(Action) - ON_ONESELF))
@pytest.mark.both_engines
async def test_every_operation_is_tried_by_every_role(
    market: Market, authors: dict[Role, Member], action: Action
) -> None:
    user, other = await subjects(market, action)
    for role, author in authors.items():
        await prepare(market, action, other, user)
        before = await dump(market)
        attempt = ATTEMPTS[action](market, author, user, other)
        if role in MATRIX[action]:
            await attempt
            rows = (await dump(market))["staff_log"]
            newest = max(rows, key=lambda row: int(row[0]))
            is_logged = action not in READS
            assert (newest[1:] == (action, author.staff_id, "root")) is is_logged
            continue
        with pytest.raises(MarketError) as refused:
            await attempt
        assert refused.value.code is Code.NOT_PERMITTED
        assert await dump(market) == before


@pytest.mark.both_engines
# Another operator acknowledges a rescue, so that the machine alone cannot hide one.
@cases("action", sorted(set(Action) - ON_ONESELF - {Action.STAFF_ACKNOWLEDGE}))
async def test_the_machine_may_do_every_operation(market: Market, action: Action) -> None:
    user, other = await subjects(market, action)
    await prepare(market, action, other, user)
    await ATTEMPTS[action](market, ROOT, user, other)
    require(Machine("somebody"), action)


@cases("action", sorted(ON_LIVING))
async def test_an_erased_account_refuses_every_change(market: Market, action: Action) -> None:
    user, other = await subjects(market, action)
    await prepare(market, action, other, user)
    await erasing.erase(
        market.context,
        tools(market),
        ROOT,
        user,
        waives=True,
        needs_second=False,
        limits=LIMITS,
        why="asked",
    )
    before = await dump(market)
    with pytest.raises(MarketError) as refused:
        await ATTEMPTS[action](market, ROOT, user, other)
    assert refused.value.code is Code.ACCOUNT_CLOSED
    assert await dump(market) == before


@pytest.fixture
async def former(market: Market) -> dict[str, Member]:
    """Begin with an operator, and with others that are none any more."""
    await member(market, Role.OPERATOR, "last")
    locked, moved = [await member(market, Role.OPERATOR, each) for each in ("locked", "moved")]
    await accounts.lock(market.context, ROOT, locked.id, "left")
    await accounts.set_role(market.context, ROOT, moved.id, Role.SUPPORT, "moved")
    unknown = Created("nobody", "", Role.OPERATOR, locked.factor)
    return {
        "locked": acting(locked),
        "another role": acting(moved),
        "unknown": acting(unknown),
    }


@cases("action", sorted(set(Action) - ON_ONESELF))
async def test_a_member_that_is_locked_or_has_changed_can_do_nothing(
    market: Market, former: dict[str, Member], action: Action
) -> None:
    user, other = await subjects(market, action)
    await prepare(market, action, other, user)
    for state, author in former.items():
        with pytest.raises(MarketError) as refused:
            await ATTEMPTS[action](market, author, user, other)
        assert refused.value.code is Code.NOT_PERMITTED, state
