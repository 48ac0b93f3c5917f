"""How long the pages and searches of the staff take in a market of a size."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator

from support.database.grown import NOW, Grown

from market.accounts.letters import Letters
from market.accounts.outbox import Outbox
from market.base.sealing import Sealing
from market.base.states import PayoutStatus
from market.events.context import Context
from market.payouts import details
from market.payouts.details import Details
from market.staff import rule_stops
from market.staff.abuse import tickets
from market.staff.abuse.rule_tickets import CATEGORIES
from market.staff.base.roles import Action, Machine
from market.staff.cases.base import Kind
from market.staff.cases.cases import Cases
from market.staff.finding import history, search, users
from market.staff.members import accounts, attempts, keys, rescue
from market.staff.money import approvals, judging, money, paying, payments
from market.staff.rule_stops import Threshold
from market.staff.site import site
from market.staff.stopping import stopping
from proxyd.ops.base.books import context_of
from storage.engines.open import open_store
from storage.engines.store import Transaction

REPEATS = 101
LIMIT = 50
GROW_SECONDS = 600.0  # for one statement, of ten million transfers on a machine with other work
AUTHOR = Machine("bench")
DAY = 86_400
ACTS_FROM = 1_000_000_000  # the measured acts are numbered from 1
SEALING = Sealing(b"k" * 32, b"bench")

Call = Callable[[], Awaitable[object]]


def figures(url: str, market: Grown) -> dict[str, float]:
    """Return the median and the 99th percentile of each page and search, in milliseconds.

    It adds the rows that only the staff looks at: no audit passes afterwards.
    """
    return asyncio.run(_figures(url, market))


async def _figures(url: str, market: Grown) -> dict[str, float]:
    await _grow(url)
    store = await open_store(url)
    found: dict[str, float] = {}
    try:
        context = context_of(store)
        for name, call in (_searches(context, market) | _pages(context, market)).items():
            taken = sorted([await _seconds(call) for _ in range(REPEATS)])
            found[f"{name}, ms"] = statistics.median(taken) * 1000
            found[f"{name}, p99 ms"] = taken[REPEATS * 99 // 100 - 1] * 1000
    finally:
        await store.close()
    return found


def _searches(context: Context, market: Grown) -> dict[str, Call]:
    """Return the searches."""
    middle = max(market.users // 2, 1)
    user, work = f"user{middle}", f"{market.work // 2:012}"

    def who(text: str) -> Call:
        return lambda: search.who(context, AUTHOR, text)

    return {
        "search: an e-mail address": who(f"{user}@example.com"),
        "search: the beginning of addresses": who("user1@"),
        "search: the beginning of names": who("user"),
        "search: a domain of all users": who("@example.com"),
        "search: a text without a hit": who("nobody-has-this-name"),
        "search: a user": who(f"01900000-0000-7000-8001-{middle:012}"),
        "search: a session or job": who(f"01900000-0000-7000-8003-{work}"),
        "search: a transfer": who(f"01900000-0000-7000-8006-{work}"),
        "search: a payment": who(str(middle)),
        "search: a proxy user name": who(f"session{market.work // 2}"),
        "search: an address of a client": who("8.8.8.8"),
        "search: a network": who("8.8.8.0/24"),
    }


def _pages(context: Context, market: Grown) -> dict[str, Call]:
    """Return the pages, and the filters of their lists."""
    user, largest = f"user{max(market.users // 2, 1)}", market.buyer_id

    def of(read: Callable[..., Awaitable[object]], *values: object, **more: object) -> Call:
        return lambda: read(context, AUTHOR, *values, **more)

    log, paid = history.read, payments.listed
    pages: dict[str, Call] = {
        "page: a user": of(users.view, user),
        "page: the user with the most open work": of(users.view, largest),
        "page: the money of a user": of(money.history, user, limit=LIMIT),
        "page: the money of the largest user": of(money.history, largest, limit=LIMIT),
        "page: approvals": of(approvals.listed, limit=LIMIT),
        "page: all approvals": of(approvals.listed, is_open=False, limit=LIMIT),
        "page: the log": of(log, limit=LIMIT),
        "page: the log of a user": of(log, user=user, limit=LIMIT),
        "page: the log of an operation": of(log, action=Action.USER_VIEW, limit=LIMIT),
        "page: the log of a rare operation": of(log, action=Action.USER_PRICE, limit=LIMIT),
        "page: the log of an operation on a user": of(
            log, user=user, action=Action.USER_PRICE, limit=LIMIT
        ),
        "page: all payments": of(paid, "", status="", before="", limit=LIMIT),
        "page: doubtful payments": of(paid, "", status="doubtful", before="", limit=LIMIT),
        "page: the payments of a user": of(paid, user, status="", before="", limit=LIMIT),
        "page: open payments of a user": of(paid, user, status="open", before="", limit=LIMIT),
        "page: expired payments of a user": of(
            paid, user, status="expired", before="", limit=LIMIT
        ),
        "page: a payment": of(payments.shown, _of(40, 1)),
        "page: a payout": of(paying.show, _of(42, 10), SEALING),
        "page: doubtful batches": of(paying.doubtful, limit=LIMIT),
        "page: disputes": of(judging.disputes, limit=LIMIT),
        "page: a job": of(judging.evidence, _of(3, market.work // 4 * 2)),
        "page: a session": of(stopping.show_session, _of(3, market.work // 4 * 2 + 1)),
        "page: the queue of tickets": of(tickets.listed, state=None, limit=LIMIT),
        "page: a ticket": of(tickets.show, 1),
        "page: the rules against abuse": of(
            rule_stops.trial, dict.fromkeys(CATEGORIES, Threshold(100, 50))
        ),
        "page: members": of(accounts.listed),
        "page: keys of members": of(keys.listed),
        "page: rescues": of(rescue.listed),
        "page: attempts to log in": of(attempts.listed, limit=LIMIT),
        "page: published texts": of(site.published),
        "page: notices": of(site.notices),
        "page: invitations": of(site.invited),
    }
    for status in PayoutStatus:
        pages[f"page: payouts, {status}"] = of(paying.listed, status, after="", limit=LIMIT)
    for state in tickets.State:
        pages[f"page: tickets, {state}"] = of(tickets.listed, state=state, limit=LIMIT)
    return pages | _cases(context, user)


def _cases(context: Context, user: str) -> dict[str, Call]:
    """Return the pages of cases, with those of one user."""
    pages: dict[str, Call] = {}
    cases = Cases(context, Letters(Outbox(context, SEALING, "mail"), "https://app.example.com"))
    for kind in Kind:
        pages[f"page: cases, {kind}"] = lambda kind=kind: cases.listed(AUTHOR, kind, limit=LIMIT)
    for kind, case in (
        (Kind.CANARY, _of(45, 1)),
        (Kind.SAMPLE, _of(3, 200)),  # every second piece of work is a job, and each 100th was wrong
        (Kind.REWARD, _of(12, 1)),
        (Kind.APPEAL, _of(46, 1)),
    ):
        pages[f"page: a case, {kind}"] = lambda kind=kind, case=case: cases.shown(
            AUTHOR, kind, case
        )
    for kind in (Kind.REWARD, Kind.APPEAL):
        pages[f"page: cases of a user, {kind}"] = lambda kind=kind: cases.listed(
            AUTHOR, kind, user=user, limit=LIMIT
        )
    pages["page: open appeals of a user"] = lambda: cases.first_due(
        AUTHOR, Kind.APPEAL, user=user, limit=LIMIT
    )
    pages["page: open appeals"] = lambda: cases.first_due(AUTHOR, Kind.APPEAL, limit=LIMIT)
    return pages


def _of(kind: int, number: int) -> str:
    """Return the identifier of a row of the grown market, or of `_rows`."""
    return f"01900000-0000-7000-8{kind:03}-{number:012}"


async def _grow(url: str) -> None:
    async def unit(tx: Transaction) -> None:
        for statement in _rows():
            await tx.run(statement)
        if not url.startswith("sqlite"):
            await tx.run("ANALYZE")

    # A statement adds up to half a million rows, which no statement of the product does.
    store = await open_store(url, statement_seconds=GROW_SECONDS)
    try:
        await store.write(unit)
    finally:
        await store.close()


def _rows() -> Iterator[str]:
    """Yield the statements that add the rows of the staff's lists: some of each user."""
    every = "(SELECT ROW_NUMBER() OVER (ORDER BY id) AS n, id AS user_id FROM users) AS u"
    works = """(
        SELECT ROW_NUMBER() OVER (ORDER BY id) AS n, id, user_id, device_id FROM jobs
        WHERE status = 'completed'
    ) AS j"""
    tens = "(SELECT 0 AS m UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4) AS t"

    sealed = details.seal(SEALING, Details(text="in cash"))

    def made(kind: int, number: str) -> str:
        digits = f"SUBSTR(CAST(1000000000000 + {number} AS TEXT), 2)"
        return f"'01900000-0000-7000-8{kind:03}-' || {digits}"

    yield f"""
        INSERT INTO payments (id, user_id, provider, status, amount, created_at, closed_at)
        SELECT {made(40, "n * 5 + m")}, user_id, 'stripe',
            CASE WHEN n % 100 = 0 THEN 'open' WHEN n % 100 = 1 THEN 'doubtful' ELSE 'expired' END,
            1000000, {NOW}, CASE WHEN n % 100 = 0 THEN NULL ELSE {NOW} END
        FROM {every}, {tens}
    """
    yield f"""
        INSERT INTO payments (id, user_id, provider, status, amount, created_at, closed_at)
        SELECT {made(40, "1")}, user_id, 'stripe', 'expired', 1000000, {NOW}, {NOW}
        FROM {every} WHERE n = 1
    """
    yield f"""
        INSERT INTO payout_methods (id, user_id, kind, sealed, shown, created_at, usable_at)
        SELECT {made(41, "n")}, user_id, 'manual', '{sealed}', 'x', {NOW}, {NOW} FROM {every}
    """
    yield f"""
        INSERT INTO payouts (id, user_id, method_id, currency, amount, rate, usd, fee, fee_amount,
            state, reason, requested_at, decide_by, ended_at)
        SELECT {made(42, "n")}, user_id, {made(41, "n")}, 'usd', 1000, 0, 1000, 0, 0,
            CASE WHEN n % 10 = 0 THEN 'requested' ELSE 'rejected' END,
            CASE WHEN n % 10 = 0 THEN NULL ELSE 'terms_broken' END, {NOW}, {NOW},
            CASE WHEN n % 10 = 0 THEN NULL ELSE {NOW} END
        FROM {every}
    """
    yield f"""
        INSERT INTO tickets
            (number, category, state, opened_at, due_at, user_id, facts, closed_at, outcome)
        SELECT n, 'scan', CASE WHEN n % 20 = 0 THEN 'new' ELSE 'closed' END, {NOW}, {NOW} + {DAY},
            user_id, '{{}}', CASE WHEN n % 20 = 0 THEN NULL ELSE {NOW} END,
            CASE WHEN n % 20 = 0 THEN NULL ELSE 'no_match' END
        FROM {every}
    """
    yield f"""
        INSERT INTO staff_log
            (number, at, via, unix_user, action, subject_kind, subject_id, user_id, changes, hash)
        SELECT {ACTS_FROM} + n * 5 + m, {NOW}, 'machine', 'bench', 'user.view', 'user', user_id,
            user_id, '{{}}', 'x'
        FROM {every}, {tens}
    """
    yield f"""
        INSERT INTO approvals (id, action, business_key, user_id, currency, amount, payload,
            payload_hash, asked_by, log_number, asked_at, expires_at, decided_by, decided_at,
            decision)
        SELECT {made(43, "n")}, 'money.correct', 'bench:' || n, user_id, 'usd', 1, '{{}}', 'x',
            'unix:a', n, {NOW}, {NOW} + {DAY}, CASE WHEN n % 20 = 0 THEN NULL ELSE 'unix:b' END,
            CASE WHEN n % 20 = 0 THEN NULL ELSE {NOW} END,
            CASE WHEN n % 20 = 0 THEN NULL ELSE 'refused' END
        FROM {every}
    """
    yield f"""
        INSERT INTO staff_attempts (id, account, network, via, created_at)
        SELECT {made(44, "n * 5 + m")}, 'x' || n, '8.8.8.0/24', 'api', {NOW} FROM {every}, {tens}
    """
    yield f"""
        INSERT INTO exit_canaries (id, device_id, kind, evidence, found_at)
        SELECT {made(45, "n")}, device_id, 'body', '', {NOW}
        FROM (SELECT ROW_NUMBER() OVER (ORDER BY device_id) AS n, device_id FROM exits) AS e
    """
    yield f"""
        INSERT INTO job_samples (job_id, device_id, owner_id, answer, shown_buyer, price, is_first,
            created_at, outcome)
        SELECT id, device_id, user_id, '', '', 1, 0, {NOW},
            CASE WHEN n % 100 = 0 THEN 'wrong' ELSE 'right' END
        FROM {works} WHERE n % 10 = 0
    """
    # Disputes that wait, and some that were decided: their appeals.
    yield f"""
        INSERT INTO job_reviews (job_id, attempt, user_id, buyer_id, earned, currency, price,
            created_at, review_until, state, disputed_at, resolved_at)
        SELECT id, 1, user_id, user_id, 450, 'credit', 500, {NOW}, {NOW},
            CASE WHEN n % 50 = 0 THEN 'disputed' ELSE 'upheld' END, {NOW},
            CASE WHEN n % 50 = 0 THEN NULL ELSE {NOW} END
        FROM {works} WHERE n % 5 = 0
            AND NOT EXISTS (SELECT 1 FROM job_reviews AS r WHERE r.job_id = j.id AND r.attempt = 1)
    """
    yield f"""
        INSERT INTO appeals (id, job_id, user_id, reason, created_at, due_at, decided_at)
        SELECT {made(46, "n")}, job_id, user_id, '', {NOW}, {NOW} + {DAY},
            CASE WHEN n % 10 = 0 THEN NULL ELSE {NOW} END
        FROM (
            SELECT ROW_NUMBER() OVER (ORDER BY job_id) AS n, job_id, user_id FROM job_reviews
            WHERE state = 'upheld'
        ) AS r
    """


async def _seconds(call: Call) -> float:
    begin = time.perf_counter()
    await call()
    return time.perf_counter() - begin
