"""No question takes longer because the market has grown, unless it is about all of it.

Markets of two sizes are filled directly. The audit, which reads everything, may read each table
once. The queries of a request or a sweeper read the same number of rows in the larger market and in
the smaller one.
"""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.base.clock import Clock
from support.database import grown, postgres, sqlite
from support.database.plans import watched
from support.market import staff as market_staff
from support.market.cases import cases_of
from support.market.exits import SomeAttached, claw_back, exit_device
from support.market.jobs import device_of
from support.market.leaving import tools
from support.market.market import SECRET, Market
from support.market.work import posted

from market.accounts.bounds import Bounds
from market.accounts.keys import KeyChange, NewKey
from market.accounts.scopes import Scope
from market.accounts.spending import SpendLimits
from market.bandwidth.leases import Usage
from market.bandwidth.usage_range import UTC, Step, range_of
from market.base.errors import MarketError
from market.base.states import JobStatus, SessionStatus
from market.dispatch.claims import claim
from market.erasure import erasing
from market.exits.wishes import ExitWishes
from market.files.artifacts import CHECKPOINT, OUTPUT, ArtifactTerms, NewArtifact, checkpoint_of
from market.jobs.attempt_reports import Named
from market.jobs.copies import Copying
from market.jobs.postings import NewJob
from market.jobs.reviews import disputes
from market.jobs.specs import NewSpec, understand
from market.money.audit import audit_ledger
from market.money.money import GB, MICRO, Currency
from market.payouts.lines import Lines, Term
from market.staff import rule_stops
from market.staff.abuse import exit_use, looks, rule_tickets, tickets
from market.staff.abuse.exit_use import Destination, Found, Question, Use
from market.staff.base.callers import StaffScope
from market.staff.base.roles import Machine, Role, Via
from market.staff.cases.base import Kind
from market.staff.finding import history, search
from market.staff.finding import users as staff_users
from market.staff.members import accounts, attempts, rescue
from market.staff.members import keys as staff_keys
from market.staff.members.keys import NewStaffKey, StaffKeys
from market.staff.members.logins import Proof, StaffLogins
from market.staff.members.rescue import Post
from market.staff.money import approvals, deposits, judging, second_person, user_limits
from market.staff.money import money as staff_money
from market.staff.money.user_limits import NewLimits
from market.staff.site.alerts import Alerts
from proxyctl.protocol.jobspec import Payload
from storage.accounts import closures, users
from storage.accounts import keys as key_queries
from storage.bandwidth import nodes
from storage.bandwidth import sessions as bandwidth
from storage.bandwidth import usage as usage_queries
from storage.blobs.local import LocalBlobs
from storage.devices import devices as device_queries
from storage.dispatch import claims as claim_queries
from storage.dispatch.claims import GivenRow, PairRow
from storage.engines.open import open_store
from storage.engines.store import Transaction
from storage.events import events as event_queries
from storage.events import idempotency
from storage.events.events import EventRow
from storage.exits import exits as exit_queries
from storage.jobs import answers
from storage.jobs import jobs as job_queries
from storage.logs import logs
from storage.money import debts as debt_queries
from storage.money import ledger
from storage.notify import webhooks
from storage.payments import payments as payment_queries
from storage.payments import top_ups as top_up_queries
from storage.payouts import batches as batch_queries
from storage.payouts import payouts as payout_queries
from storage.payouts import sources as source_queries
from storage.site import alerts as alert_queries

MACHINE = Machine("root")
SMALL, LARGE = 5_000, 50_000
# The number of reads can differ by the depth of an index, and by a row's place on its pages.
SLACK = 1.6
# PostgreSQL reads some pages whole rather than look each row up: less than the market is open.
SMALLEST_WORK = 2_500
# Steps of SQLite and rows of PostgreSQL for a page of three cases: appeals take most, 240 and 18. A
# look at all cases of a kind takes 57 rows at least.
PAGE_WORK = {False: 400, True: 30}
# The same for one of 51 users: an equal part of the payments takes 130 and 19, and all take 6,000.
PAYMENTS_WORK = 500
# Plans that PostgreSQL prefers to the lookup of each row: cheaper on tables as small as these are.
_AVOIDED = ("seqscan", "bitmapscan", "hashjoin", "mergejoin")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(request: pytest.FixtureRequest, engine: str) -> str:
    return "" if engine == "sqlite" else str(request.getfixturevalue("postgres_server"))


@asynccontextmanager
async def filled(
    server: str, folder: Path, size: int, *, forbid_scans: bool = False
) -> AsyncIterator[Market]:
    """Open a market of a size; with `forbid_scans`, PostgreSQL scans only where no index answers.

    It would read a table of a few pages whole in any case, and that tells nothing of a large one.
    """
    if not server:
        url = f"sqlite:///{folder}/{size}.db"
        async with _opened(url, size) as market:
            yield market
        return
    name = f"grown_{uuid.uuid4().hex}"
    async with postgres.database(server, name) as url:
        for part in _AVOIDED if forbid_scans else ():
            await postgres.execute(url, f'ALTER DATABASE "{name}" SET enable_{part} = off')
        async with _opened(url, size) as market:
            yield market


@asynccontextmanager
async def _opened(url: str, size: int) -> AsyncIterator[Market]:
    await (await open_store(url)).close()
    await grown.grow(url, size, buyers_work=size // 10)
    store = await open_store(url)
    clock = Clock()
    clock.now = grown.NOW
    market = Market(store, clock, LocalBlobs(Path("/nonexistent")))  # no byte is sent
    # Open objects of a user are counted when they add one, up to a bound: without one here, where a
    # buyer has more than that.
    market.change_bounds(
        Bounds(
            sessions=0, addresses=0, jobs=0, free_jobs=0, job_bytes=0, devices=0, new_owner_slots=0
        )
    )
    market.artifacts.terms = ArtifactTerms(user_bytes=0, user_files=0)
    try:
        yield market
    finally:
        market.passwords.close()
        await store.close()


async def test_a_page_of_my_own_costs_a_statement_or_two_however_long_it_is(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer = await market.person(usd="100", credit="100")
    for number in range(20):
        await market.bandwidth.buy(
            buyer,
            quota_bytes=GB,
            price_per_gb=None,
            allow_ips=[f"203.0.113.{number}"] if number % 2 else [],
        )
        await market.jobs.create(buyer, NewJob("x", "script", MICRO, 1, "", ""))
    found = watched(market.store, monkeypatch)
    costs = {}
    for what in ("my sessions", "my jobs", "my wallet", "my devices", "my deploys"):
        await REQUESTS[what](market, buyer)
        costs[what] = len(found.taken())
    assert costs == {
        "my sessions": 2,  # the second one reads the addresses that open these sessions
        "my jobs": 1,
        "my wallet": 1,
        "my devices": 1,
        "my deploys": 1,
    }


async def usage(market: Market) -> None:
    """Read the recent and the total use of a buyer with many sessions."""
    buyer = grown.Grown(LARGE).buyer_id
    for step in Step:
        range_ = range_of(step, UTC, None, None, now=grown.NOW)
        assert (await market.usage.series(buyer, range_)).total.used_bytes > 0
        with pytest.raises(MarketError):  # one session of no user
            await market.usage.series(buyer, range_, by_session=True, session_id=grown.OLDEST)
    await market.usage.summary(buyer, UTC)


async def rescued(market: Market) -> None:
    """Rescue an operator, look for alerts, list the rescues, and acknowledge one."""
    olga, omar = [
        await market_staff.member(market, Role.OPERATOR, name) for name in ("olga", "omar")
    ]
    logins = StaffLogins(market.context, market.passwords, market_staff.FACTORS, SECRET)
    post = Post(market.emails, "x")
    await rescue.rescue(market.context, logins, post, MACHINE, olga.id, "all lost")
    alerts = Alerts(market.context, market.emails, ("olga@example.com",), "x", 0)
    assert (await alerts.look([])).rescues == 1
    [lost] = await rescue.listed(market.context, MACHINE)
    await rescue.acknowledge(market.context, market_staff.acting(omar), lost.id, "she called")


# Requests about everything, or everything that is open, or all that a user has.
ABOUT_ALL: dict[str, Callable[[Market], Awaitable[Any]]] = {
    "abandoned jobs": lambda market: market.job_sweeper.take_back(),
    "leases open when the daemon died": lambda market: market.store.read(nodes.leases, None),
    "sessions used up when the daemon died": lambda market: market.store.read(bandwidth.used_up),
    "disputes": lambda market: disputes(market.context),
    "what a buyer has used": usage,
    "logs whose attempts have ended": lambda market: market.store.read(logs.newly_ended, limit=200),
    # Only for a user beyond the limit.
    "the oldest logs of a user": lambda market: market.store.read(
        logs.oldest_of_user, grown.Grown(LARGE).buyer_id, decided_after=0, limit=200
    ),
    "open jobs by state": lambda market: market.store.read(job_queries.by_state),
    "totals of the ledger": lambda market: market.store.read(ledger.totals),
    "rescues and alerts": rescued,
}


@pytest.mark.long
async def test_a_statement_about_everything_scans_nothing_within_a_scan(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(server, tmp_path, LARGE) as market:
        found = watched(market.store, monkeypatch)
        report = await audit_ledger(market.store)
        for ask in ABOUT_ALL.values():
            await ask(market)
        asked = found.taken()
        await market.store.read(every_hold_looks_through_all_work)
        [control] = found.taken()
    assert report.passed, report
    assert len(asked) >= len(report.checks) + len(ABOUT_ALL)
    assert [str(each) for each in asked if each.inner_scans] == []
    assert control.inner_scans, "what is looked for is not recognised"


async def test_postgres_reads_running_jobs_once_for_all_owners_and_devices(
    postgres_server: str, postgres_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To statistics from before the jobs began, a read of all of them costs as much as of one's."""
    name = f"running_{uuid.uuid4().hex}"
    async with postgres.database(postgres_server, name, template=postgres_template) as url:
        await postgres.execute(url, f'ALTER DATABASE "{name}" SET enable_seqscan = off')
        store = await open_store(url)
        market = Market(store, Clock())
        buyer = await market.person(credit="1000")
        owners = [await market.person() for _ in range(20)]
        rigs = [await device_of(market, owner) for owner in owners]
        devices = [rig.id for rig in rigs]

        async def add_idle(tx: Transaction) -> None:  # of one page any index costs the same
            for number in range(1_000):
                idle = {"id": market.identifiers.new(), "token_hash": f"idle {number}"}
                await device_queries.insert(tx, rigs[0]._replace(user_id=buyer, **idle))

        await store.write(add_idle)
        pairs = [
            PairRow(await posted(market, buyer), devices[number % len(devices)], 0)
            for number in range(5 * len(devices))
        ]
        await postgres.execute(url, "ANALYZE")
        await store.write(claim_queries.start, pairs, now=1)
        found = watched(store, monkeypatch)
        running = await store.read(claim_queries.running_of_owners, owners)
        loads = await store.read(claim_queries.loads, devices, proven_jobs=3)
        taken = found.taken()
        read = [each.work for each in taken]
        market.passwords.close()
        await store.close()
    assert running == dict.fromkeys(owners, 5)
    assert {row.device_id: row.running for row in loads} == dict.fromkeys(devices, 5)
    # Each row counts at each step of the plan that it takes part in.
    assert max(read) < 8 * len(pairs), "\n".join(map(str, taken))


async def test_the_bonuses_of_a_day_are_a_range_of_an_index(tmp_path: Path) -> None:
    """Of one referrer there may be many; they are counted for each bonus that waits."""
    store = await open_store(sqlite.database(tmp_path))

    async def plan(tx: Transaction) -> list[str]:
        return await tx.all(
            lambda *columns: str(columns[-1]),
            "EXPLAIN QUERY PLAN"
            " SELECT COUNT(*) FROM referrals WHERE referrer_id = :id AND paid_at >= :moment",
            id="",
            moment=0,
        )

    [step] = await store.read(plan)
    await store.close()
    assert "COVERING INDEX referrals_by_referrer (referrer_id=? AND paid_at>?)" in step


async def test_the_open_objects_of_a_user_are_counted_from_indexes(tmp_path: Path) -> None:
    """Each post counts the jobs of its buyer, perhaps thousands a day; only replicas are read."""
    store = await open_store(sqlite.database(tmp_path))
    opcodes: list[str] = []

    class Explained:
        def __init__(self, tx: Transaction) -> None:
            self._tx = tx

        async def one(self, row: Callable[..., Any], sql: str, **values: Any) -> None:
            del row
            steps = await self._tx.all(lambda *each: str(each[1]), f"EXPLAIN {sql}", **values)
            opcodes.extend(steps)

    async def count(tx: Transaction) -> None:
        explained: Any = Explained(tx)
        await job_queries.open_work(explained, "", free_below=1, job_bytes=1, since=0)

    await store.read(count)
    columns = await store.read(columns_of_index, "jobs_by_user_and_age")
    await store.close()
    # The row is sought when a column is wanted that the index has not: of a replica.
    assert "DeferredSeek" in opcodes
    assert "deploy_id" in columns


async def columns_of_index(tx: Transaction, name: str) -> list[str]:
    return await tx.all(str, "SELECT name FROM pragma_index_info(:name)", name=name)


async def every_hold_looks_through_all_work(tx: Transaction) -> None:
    """Ask for less than the audit, and have it take the square of it: not equal is not indexed."""
    await tx.all(
        str,
        """
        SELECT h.id FROM holds AS h WHERE h.resolved_at IS NULL AND h.amount < 0 AND EXISTS (
            SELECT 1 FROM bandwidth_sessions AS s WHERE s.status <> h.currency
        )
        """,
    )


async def sessions(market: Market, buyer: str, status: SessionStatus | None) -> None:
    await market.bandwidth.page(buyer, status=status, before="", limit=101)


async def jobs(market: Market, buyer: str, status: JobStatus | None) -> None:
    await market.jobs.page_of_user(buyer, status=status, before="", limit=101)


async def marketplace(market: Market, status: JobStatus | None, job_type: str) -> None:
    await market.jobs.page_open(status=status, job_type=job_type, before="", limit=101)


async def wallet(market: Market, buyer: str, before: str) -> None:
    await market.wallet.page(buyer, before=before, limit=101)


async def trade(market: Market, buyer: str) -> None:
    """Buy and end a session; have a job done, and one taken back."""
    bought = await market.bandwidth.buy(buyer, quota_bytes=GB, price_per_gb=None)
    await market.lease(bought)
    await market.bandwidth.end(buyer, bought.session_id)
    made = await market.devices.create(buyer, name="x", device_type="server", min_price_usd=None)
    device = await market.devices.authenticate(made.token)
    market.devices.heartbeat(device, {"cpu_cores": 4})
    await market.devices.reports.flush()
    new = NewJob("x", "script", MICRO, 1, "", "")
    done, lost = [await market.jobs.create(buyer, new) for _ in range(2)]
    for job in (done, lost):
        await market.jobs.accept(device, job)
    await market.jobs.complete(device, done, "")
    await market.devices.revoke(buyer, device.id)
    await market.job_sweeper.take_back_from(device.id)


async def leave(market: Market, buyer: str) -> None:
    """Buy a session that leaves through an exit, report the exit's bytes, and end it."""
    bought = await market.bandwidth.buy(
        buyer, quota_bytes=GB, price_per_gb=None, exit_wishes=ExitWishes()
    )
    grant = await market.lease(bought)
    assert grant is not None
    made = await exit_device(market)
    usage = Usage(bought.session_id, grant.lease_id or "", GB // 2, ((made.id, GB // 2),))
    await market.leases.report([usage])
    await market.exits.authorize(made.token, market.exits.terms_hash)
    attached = SomeAttached()
    market.exits.join(attached)
    attached.come(made.id, "de")
    await market.exits.look()
    await market.exits.by_country(buyer, bought.session_id)
    await market.bandwidth.end(buyer, bought.session_id)
    await claw_back(market.context, made.id, "injects")


async def advances(market: Market, _: str) -> None:
    """Post the earnings of exits for some sessions that go on, as one step of the hourly sweep."""
    first = exit_queries.ActiveRow(-1, "")
    some = await market.store.read(exit_queries.sessions_to_advance, after=first, limit=10)
    assert len(some) == 10
    await market.exit_advances._advance_some([each.id for each in some])


async def my_exits(market: Market, buyer: str) -> None:
    shown = await market.exits.page(buyer, before="", limit=101)
    await market.exits.today([each.id for each in shown])
    await market.exits.earnings(buyer)
    await market.exits.pending(buyer)


async def events(market: Market, buyer: str) -> None:
    """Read the newest events of a buyer, those behind one, some by identifier, and some types."""
    feed = market.event_feed
    newest, behind = await feed.page(buyer, limit=20)
    assert behind == newest[-1].id
    assert len(newest) == 20
    await feed.page(buyer, after=newest[-1].id, limit=20)
    await feed.page(buyer, after=newest[-1].id, limit=20, order="oldest")
    await feed.page(buyer, types=("job.created", "job.failed"), limit=20)
    await market.store.read(event_queries.find, [each.id for each in newest])
    before = newest[0].id
    await market.store.write(event_queries.delete_before, grown.OLDEST, limit=100)
    [[first], _] = await feed.page(buyer, limit=1)
    assert before == first.id


async def keys(market: Market, buyer: str) -> None:
    """Make a key, call with it, spend, list it, change it, replace it and revoke all."""
    new = NewKey(name="k", scopes=(Scope.USAGE_READ,), spend_limits=SpendLimits(usd=MICRO))
    made = await market.keys.create(buyer, new)
    await market.keys.authenticate(made.key, "127.0.0.1")
    await market.store.write(
        key_queries.spend, purse_id=made.row.purse_id, currency="usd", amount=1, day=0, month=0
    )
    assert len(await market.keys.all_of(buyer)) == 3
    await market.keys.change(buyer, made.row.id, KeyChange(name="other"))
    other = await market.keys.roll(buyer, made.row.id, overlap_hours=1)
    await market.keys.revoke(buyer, other.row.id)
    await market.store.read(key_queries.live_of, buyer, market.clock.seconds())


async def keys_in_time(market: Market, _: str) -> None:
    """Find keys that expire soon, and delete records of old spending, as one step of the sweep."""
    now = grown.NOW
    found = await market.store.read(
        key_queries.expiring, now=now, before=now + 7 * 86_400, limit=20
    )
    assert len(found) == 20
    assert await market.store.write(key_queries.forget_spent, before=now, limit=20) == 20


async def logins(market: Market, buyer: str) -> None:
    now = market.clock.seconds()
    await market.store.write(
        users.insert_login, session_id="new", user_id=buyer, created_at=now, expires_at=now + 60
    )
    await market.store.read(users.profile_by_login, session_id="new", user_id=buyer, now=now)
    await market.store.write(users.end_logins, buyer, but="", now=now)
    await market.store.write(
        users.insert_mail_token,
        token_hash="new",
        user_id=buyer,
        purpose="verify",
        now=now,
        expires_at=now + 60,
    )


async def artifacts(market: Market, buyer: str) -> None:
    """Send a file of a buyer's, list and delete it; let a device send some, and look for one."""
    new = NewArtifact("x", "0" * 64, 0)
    sent = (await market.artifacts.announce(buyer, new)).artifact
    await market.artifacts.find(buyer, sent.id)
    assert len(await market.artifacts.page_of_user(buyer, before="", limit=101)) == 101
    await market.artifacts.delete(buyer, sent.id)
    device = await device_of(market, buyer)
    job_id = await market.jobs.create(buyer, NewJob("x", "script", MICRO, 1, "", ""))
    await market.jobs.accept(device, job_id)
    for kind in (OUTPUT, CHECKPOINT):
        await market.artifacts.announce_for_job(device, job_id, 1, kind, new)
    await market.store.read(checkpoint_of, job_id)
    await market.artifacts.page_of_job(buyer, job_id, before="", limit=101)
    with pytest.raises(MarketError):
        await market.artifacts.find_for_device(device, grown.OLDEST)
    await market.jobs.complete(device, job_id, "")


async def rolled_up(market: Market, _: str) -> None:
    """Add some hours up to days, as one step of the sweep."""
    for make_days in (usage_queries.make_days, usage_queries.make_days_of_refusals):
        await market.store.write(make_days, before=grown.NOW, limit=20)


async def staff(market: Market, buyer: str) -> None:
    """Search for everything by each of its shapes, view a user, and read the log."""
    texts = (
        *(buyer, grown.OLDEST, "user1@example.com", "user1", "@nowhere.example", "@example.com"),
        *("session", "abcdef", "pxd_123456", "203.0.113.9", "address 5", "a payment"),
    )
    for text in texts:
        await search.who(market.context, MACHINE, text)
    # Counting stops at a thousand rows, and the buyer has more rows in the larger market.
    await staff_users.note(market.context, MACHINE, "user1", "called")
    await staff_users.view(market.context, MACHINE, "user1")
    for filters in ({}, {"user": "user1"}, {"action": "user.view"}):
        assert await history.read(market.context, MACHINE, limit=3, **filters)


async def own_acts(market: Market, _: str) -> None:
    """Read the acts about a user: the newest one, and those before it."""
    await staff_users.note(market.context, MACHINE, "user1", "called")
    user = await market.store.read(staff_users.resolve, "user1")
    [newest] = await market.leaving.acts.page(user.id, limit=1)
    assert (newest.row.action, newest.reason) == ("user.note", "")
    await market.leaving.acts.page(user.id, before=newest.row.number, limit=101)


async def members(market: Market, _: str) -> None:
    """Log a member in, use a key, list the attempts and keys, and add a day of money."""
    olga = await market_staff.member(market, Role.OPERATOR)
    logins = StaffLogins(market.context, market.passwords, market_staff.FACTORS, SECRET)
    proof = Proof(olga.email, market_staff.PASSWORD, olga.factor.codes[0])
    login = await logins.login(proof, address="192.0.2.7", via=Via.API)
    caller = await logins.authenticate(login.token, Via.API)
    await logins.prove(caller, olga.factor.codes[1], address="192.0.2.7")
    user = await market.person()
    await accounts.declare(market.context, caller.member, olga.id, user, "own account")
    with pytest.raises(MarketError, match="account of your own"):
        await staff_users.note(market.context, caller.member, user, "called")
    await logins.logout(caller)
    new = NewStaffKey(name="x", scopes=(StaffScope.READ,), allow_ips=("192.0.2.7",))
    made = await staff_keys.create(market.context, MACHINE, olga.id, new, "x")
    await StaffKeys(market.context).authenticate(made.text, "192.0.2.7")
    await staff_keys.revoke(market.context, MACHINE, made.row.id, "x")
    await attempts.listed(market.context, MACHINE, limit=3)
    day = await market.store.read(alert_queries.moved, grown.NOW, limit=3)
    assert day == []
    await accounts.lock(
        market.context, MACHINE, (await market_staff.member(market, Role.SUPPORT)).id, "left"
    )


async def money_by_staff(market: Market, buyer: str) -> None:
    """Refund a deposit, correct a balance, decide by two, and look at the evidence of a job."""
    context, limits = market.context, dict.fromkeys(Currency, MICRO)
    row = await market.store.read(users.find, buyer)
    assert row is not None
    assert await market.deposit(row.email, MICRO, "plan-deposit")
    moves = {"currency": Currency.USD, "why": "asked"}
    await staff_money.refund(
        context, MACHINE, buyer, limits, amount=1, deposit="plan-deposit", reference="r", **moves
    )
    await staff_money.correct(context, MACHINE, buyer, limits, amount=1, reference="c", **moves)
    for _ in range(2):
        await deposits.deposit(
            context, MACHINE, buyer, limits, amounts={Currency.USD: 1}, reference="p"
        )
    asked = await staff_money.correct(
        context, MACHINE, buyer, limits, amount=9 * MICRO, reference="d", **moves
    )
    assert await approvals.listed(context, MACHINE, limit=3)
    await second_person.approve(context, Machine("second"), asked.id)
    assert await approvals.listed(context, MACHINE, is_open=False, limit=3)
    await staff_money.history(context, MACHINE, buyer, limit=3)
    await user_limits.change(context, MACHINE, buyer, NewLimits(jobs=0), "agreed")
    [job] = await market.store.read(
        job_queries.page_of_user, user_id=buyer, status="", before="", limit=1
    )
    await judging.evidence(context, MACHINE, job.id)
    await judging.disputes(context, MACHINE, limit=3)
    for kind in Kind:
        await cases_of(market).listed(MACHINE, kind, limit=3)
    for kind in (Kind.REWARD, Kind.APPEAL):
        await cases_of(market).listed(MACHINE, kind, user=buyer, limit=3)
    await market.appeals.listed(buyer, limit=3)
    assert await market.store.read(answers.of_jobs, [job.id]) == []


async def complaints(market: Market, buyer: str) -> None:
    """Open, list, look up and close tickets, by people and by rule_tickets."""
    read = partial(bandwidth.page, user_id=buyer, only="", before="", limit=1)
    [row] = await market.store.read(read)
    session = row.id

    async def found(_: Question) -> Found:
        use = Use(session, "", 1, 2, "tcp", 22, 0, Destination.EQUAL, 1, 2, "ended")
        return Found((use,), ())

    opened = await tickets.open_ticket(
        market.context, MACHINE, tickets.Category.ABUSE, tickets.Facts(), "a complaint"
    )
    await exit_use.look_up(market.context, MACHINE, Question("192.0.2.1", 1), opened.number, found)
    await tickets.listed(market.context, MACHINE, state=None, limit=3)
    await tickets.listed(market.context, MACHINE, state=tickets.State.NEW, limit=3)
    await tickets.show(market.context, MACHINE, opened.number)
    found = rule_tickets.Found("scan", session, market.clock.now, {"dials": 1})
    await rule_tickets.report(market.context, found)
    await rule_stops.stop(market.context, found, 60)
    await rule_stops.raise_peaks(market.context, [rule_tickets.Peak("scan", session, 1, 1, 1)])
    thresholds = {"scan": rule_stops.Threshold(1)}
    await rule_stops.trial(market.context, MACHINE, thresholds)
    own = Found((), ())
    await looks.ask(market.context, Question("192.0.2.1", 1), ["a"], own, seconds=0.0)

    async def search(_: Question) -> Found:
        return own

    await looks.answer_all(market.context, "a", search)
    market.devices.origins.saw((await device_of(market, buyer)).id, "192.0.2.1")
    await market.devices.origins.flush()
    await market.devices.origins.delete_old()
    await market.rule_stops.follow()
    await market.rule_stops.delete_old()
    market.clock.now += 60
    await market.suspensions.release_due()


async def nobody_s_page(market: Market, _: str) -> None:
    """View a user that has done nothing."""
    await staff_users.view(market.context, MACHINE, await market.person())


async def end_of_an_account(market: Market, _: str) -> None:
    """Export and erase a user that has done nothing."""
    user = await market.person()
    asked = await market.leaving.exports.ask(user)
    (await market.leaving.exports.open(user, asked.id)).close()
    await market.store.write(erasing.erase, market.context, tools(market), user, waives=False)
    await market.leaving.erasures.erase_due()
    assert await market.store.read(closures.erased, since=grown.NOW)


# Requests by name: the queries of each, for the buyer.
async def sync(market: Market, buyer: str) -> None:
    """Report the attempts of a device, return the actions to stop, and renew the leases."""
    made = await market.devices.create(buyer, name="rig", device_type="server", min_price_usd=None)
    device = await market.devices.authenticate(made.token)
    job_id = await market.jobs.create(buyer, NewJob("x", "script", MICRO, 1, "", ""))
    await market.jobs.accept(device, job_id)
    named = [Named(job_id, 1, "running"), Named(grown.OLDEST, 1)]
    assert len(await market.attempt_reports.sync(device, {}, named)) == 1
    await market.renewals.flush()
    await market.attempt_reports.started(device, job_id, 1)
    assert len(await market.attempt_reports.of_job(buyer, job_id)) == 1
    await market.jobs.complete(device, job_id, "")


async def device_work(market: Market, buyer: str) -> None:
    """Have a device work, and its owner look at that; quote the cost of cancelling."""
    device = await device_of(market, buyer)
    jobs = [await market.jobs.create(buyer, NewJob("x", "script", MICRO, 1, "", "")) for _ in "ab"]
    for job_id in jobs:
        await market.jobs.accept(device, job_id)
    await market.jobs.complete(device, jobs[0], "")
    await market.device_work.states([device])
    assert (await market.device_work.find(buyer, device.id)).running == 1
    done = await market.device_work.jobs(buyer, device.id, before="", limit=101)
    assert [row.id for row in done] == jobs[::-1]
    assert len(await market.device_work.earned(buyer, device.id, 30)) == 1
    await market.jobs.cancelling_costs(buyer, jobs[1])
    await market.jobs.cancel(buyer, jobs[1])


async def copies(market: Market, buyer: str) -> None:
    """Have devices of two owners do the same work."""
    spec = understand(
        NewSpec(Payload(script="print(1)")), job_type="script", duration_hrs=1, text=""
    )
    new = NewJob("x", "script", MICRO, 1, "", "", spec)
    jobs = await market.jobs.create_copies(buyer, new, Copying(2, "bytes"))
    for job_id in jobs:
        device = await device_of(market, await market.person())
        await market.jobs.accept(device, job_id, f"network of {job_id}")
        await market.jobs.complete(device, job_id, "1")
    assert (await market.jobs.find(buyer, jobs[0])).group is not None


REQUESTS: dict[str, Callable[[Market, str], Awaitable[Any]]] = {
    "what I can be paid": lambda market, buyer: market.payouts.standing(buyer),
    "my payouts": lambda market, buyer: market.payouts.page(buyer, before="", limit=100),
    **{
        f"lines of earnings: {term}": lambda market, buyer, term=term: market.payouts.lines(
            buyer, Lines(Currency.CREDIT, term, "", 100)
        )
        for term in Term
    },
    "payouts to decide": lambda market, _: market.store.read(
        payout_queries.in_state, "requested", after="", limit=50
    ),
    "payouts to send": lambda market, _: market.store.read(
        payout_queries.to_send, ("bank", "paypal"), limit=500
    ),
    "payouts of a batch": lambda market, _: market.store.read(payout_queries.of_batch, "b"),
    "batches of a provider": lambda market, _: market.store.read(
        batch_queries.unsettled, "paypal", looked_before=1, limit=20
    ),
    "signs of one person": lambda market, buyer: market.store.read(
        source_queries.signs, buyer, buyer[:-1] + "x"
    ),
    "deposits of a buyer": lambda market, buyer: market.store.read(
        source_queries.has_deposited, buyer
    ),
    "settled batches to look at": lambda market, _: market.store.read(
        batch_queries.watched, "paypal", now=1, limit=20
    ),
    "debts that available money pays": lambda market, _: market.store.read(
        debt_queries.debtors, limit=20
    ),
    "doubtful batches": lambda market, _: market.store.read(batch_queries.doubtful, limit=20),
    "sources of earnings": lambda market, buyer: market.store.read(
        source_queries.buyers, buyer, limit=20
    ),
    "my sessions": lambda market, buyer: sessions(market, buyer, SessionStatus.ACTIVE),
    "all my sessions": lambda market, buyer: sessions(market, buyer, None),
    "my ended sessions": lambda market, buyer: sessions(market, buyer, SessionStatus.ENDED),
    "my jobs": lambda market, buyer: jobs(market, buyer, None),
    "my completed jobs": lambda market, buyer: jobs(market, buyer, JobStatus.COMPLETED),
    "the oldest of my jobs": lambda market, buyer: market.jobs.page_of_user(
        buyer, status=None, before=grown.OLDEST, limit=101
    ),
    "my wallet": lambda market, buyer: wallet(market, buyer, ""),
    "the oldest of my wallet": lambda market, buyer: wallet(market, buyer, grown.OLDEST),
    "my devices": lambda market, buyer: market.devices.page(buyer, before="", limit=101),
    "my deploys": lambda market, buyer: market.deploys.page(buyer, before="", limit=101),
    "my exits": my_exits,
    "leaving through an exit": leave,
    "my earnings": lambda market, buyer: market.jobs.earned_today(buyer),
    "my referrals": lambda market, buyer: market.referrals.standing(buyer),
    "what workers wait for": lambda market, buyer: market.reviews.earned_in_review(buyer),
    "what a device holds": sync,
    "files of jobs": artifacts,
    "open jobs": lambda market, _: marketplace(market, None, ""),
    "running jobs": lambda market, _: marketplace(market, JobStatus.RUNNING, ""),
    "open docker jobs": lambda market, _: marketplace(market, None, "docker"),
    "open training jobs, of which there are none": (
        lambda market, _: marketplace(market, None, "training")
    ),
    "waiting script jobs": lambda market, _: marketplace(market, JobStatus.WAITING, "script"),
    "buying, selling, working": trade,
    "several copies of a job": copies,
    "what a device has done": device_work,
    "logging in and out": logins,
    "events": events,
    "API keys": keys,
    "what the staff looks for": staff,
    "logins and keys of the staff": members,
    "complaints": complaints,
    "the page of a user without anything": nobody_s_page,
    "money by staff": money_by_staff,
    "the acts of the staff about me": own_acts,
    "the end of an account": end_of_an_account,
    # Not the buyer's: they have more in the larger market.
    "live usage of somebody": lambda market, buyer: market.store.read(
        bandwidth.counted_of_users, [buyer[:-1] + "x"]
    ),
}


async def given_to_a_device(market: Market, buyer: str) -> None:
    """Read waiting jobs, assign them to a device, and read the attempts that it holds."""
    device = await device_of(market, buyer)
    jobs = [await posted(market, buyer, price=0) for _ in range(4)]
    rows = await market.store.read(claim_queries.waiting, jobs)
    assert len(rows) == len(jobs)
    pairs = [PairRow(row.job_id, device.id, row.attempts) for row in rows]
    bounds = Bounds(new_owner_slots=10_000)
    outcomes = await market.store.write(claim, market.context, pairs, bounds)
    assert all(isinstance(each, GivenRow) for each in outcomes.values())
    held = await market.store.read(claim_queries.held, [device.id], limit=100)
    assert {row.job_id for row in held} == set(jobs)
    await market.store.read(claim_queries.offered, jobs)
    await market.store.read(claim_queries.excluded, jobs, now=0)


async def wallets_to_top_up(market: Market, _: str) -> None:
    async def unit(tx: Transaction) -> None:
        page = await top_up_queries.page(tx, after="", limit=10)
        assert page.last is not None
        await top_up_queries.due(tx, grown.NOW, after="", last=page.last, limit=50)

    await market.store.read(unit)


SWEEPERS: dict[str, Callable[[Market, str], Awaitable[Any]]] = {
    "jobs given to a device": given_to_a_device,
    "copies that nobody takes": lambda market, _: market.job_sweeper.expire(),
    "expired sessions": lambda market, _: market.bandwidth.expire(),
    "logs that are too old": lambda market, _: market.store.read(
        logs.ended_before, grown.NOW, decided_after=0, limit=200
    ),
    "what a user's logs take": lambda market, buyer: market.store.read(logs.kept_bytes, buyer),
    "reviews that are over": lambda market, _: market.reviews.expire(),
    "files of attempts that are over": lambda market, _: market.artifacts.settle(),
    "files that nobody needs": lambda market, _: market.artifacts.expire(),
    "payouts of exits": lambda market, _: market.exit_payouts.pay_due(),
    "advances of exits": advances,
    "replicas that are to be replaced": lambda market, _: market.rollouts.sweep(),
    "hours that are old": rolled_up,
    "keys that expire": keys_in_time,
    "wallets to top up": wallets_to_top_up,
    "webhooks that are due": lambda market, _: market.webhooks.due(but={"w"}, limit=64),
    "endpoints that want an event": lambda market, buyer: market.store.write(
        webhooks.schedule, [EventRow("e", buyer, "test.ping", None, "{}", 0)], str
    ),
    "deliveries to an endpoint": lambda market, _: market.store.read(
        webhooks.page, "w", status="failed", before="", limit=100
    ),
    "deliveries that are old": lambda market, _: market.store.write(
        webhooks.delete_before, "0", limit=100
    ),
    "devices that are silent": lambda market, _: market.store.write(
        device_queries.mark_silent, before=grown.NOW - 200, limit=100
    ),
    "leases of a node": lambda market, _: market.store.read(nodes.leases, "node"),
    "answers that are old": (
        lambda market, _: market.store.write(idempotency.delete_before, grown.NOW - 1, limit=20)
    ),
}


async def add_earned(tx: Transaction, user: str, kinds: tuple[str, ...], numbers: range) -> None:
    """Add a transfer of an earned credit of each kind for each number, which gives their order.

    A `hold` takes the credit, and all others bring it.
    """
    available, house = f"user:{user}:available:credit", "house:rewards:credit"
    for place, kind in enumerate(kinds):
        numbered = f"""
            WITH RECURSIVE numbers (n) AS (
                SELECT {numbers[0]} UNION ALL SELECT n + 1 FROM numbers WHERE n < {numbers[-1]}
            )
            SELECT '01900000-0000-7000-8100-' || SUBSTR(CAST({10**12 + place} + n * 9 AS TEXT), 2)
        """
        await tx.run(
            f"""
            INSERT INTO transfers (id, business_key, kind, reference, created_at)
            {numbered}, 'line:' || n || ':{kind}', '{kind}', 'line:' || n, n FROM numbers
            """
        )
        accounts, sign = (available, house), -1 if kind == "hold" else 1
        debit, credit = accounts[::-sign]
        await tx.run(
            f"""
            INSERT INTO entries (
                transfer_id, line, currency, debit_account, credit_account, amount, earned
            )
            {numbered}, 0, 'credit', '{debit}', '{credit}', 10, {sign * 10} FROM numbers
            """
        )


async def test_the_lines_of_a_term_are_found_among_any_number_of_others(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many earnings little came back, and of many purchases that came back little was earned."""
    few, many, part = 60, 1_200, 60
    looked: dict[Term, list[int]] = {Term.SPENT: [], Term.EARNED: []}
    scans: list[str] = []
    async with filled(server, tmp_path, 500, forbid_scans=True) as market:
        write, lines = market.store.write, market.payouts.lines
        worker, buyer = await market.person(), await market.person()

        # The older lines are the ones that are looked for.
        await write(add_earned, worker, ("capture", "release", "hold"), range(few))
        await write(add_earned, buyer, ("capture", "release", "hold"), range(few, 2 * few))
        for size in (0, many):
            for begin in range(1_000, 1_000 + size, part):  # a row changed often is slow
                await write(add_earned, worker, ("capture",), range(begin, begin + part))
                later = range(10_000 + begin, 10_000 + begin + part)
                await write(add_earned, buyer, ("release", "hold"), later)
            await write(analyse)
            for term, who, kinds in (
                (Term.SPENT, worker, {"hold", "release"}),
                (Term.EARNED, buyer, {"earning"}),
            ):
                with monkeypatch.context() as patch:
                    found = watched(market.store, patch)
                    rows = await lines(who, Lines(Currency.CREDIT, term, "", few))
                    asked = found.taken()
                assert {row.kind for row in rows} == kinds
                looked[term].append(sum(each.work for each in asked))
                scans += [f"{term}: {each}" for each in asked if each.scans or each.inner_scans]
    assert not scans, "\n\n".join(scans)
    assert all(after < SLACK * before for before, after in looked.values()), looked


async def analyse(tx: Transaction) -> None:
    await tx.run("ANALYZE")


async def test_the_newest_cases_of_all_users_are_found_without_a_look_at_the_others(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page also looks up the decisions about its cases, and their jobs and devices."""
    async with filled(server, tmp_path, SMALL, forbid_scans=True) as market:
        await market.store.write(add_cases)
        if server:
            await market.store.write(analyse)
        found = watched(market.store, monkeypatch)
        for kind in Kind:
            assert len(await cases_of(market).listed(MACHINE, kind, limit=3)) == 3, kind
            asked = found.taken()
            assert sum(each.work for each in asked) < PAGE_WORK[bool(server)], asked


async def add_cases(tx: Transaction) -> None:
    """Make each job that is over, and each device, a case; every user has a reward already."""
    work = "FROM jobs WHERE status = 'completed'"
    await tx.run(f"""
        INSERT INTO job_samples (job_id, device_id, owner_id, answer, shown_buyer, price, is_first,
            created_at, outcome)
        SELECT id, device_id, user_id, '', '', 1, 0, {grown.NOW}, 'wrong' {work}
    """)
    await tx.run(f"""
        INSERT INTO job_reviews (job_id, attempt, user_id, buyer_id, earned, currency, price,
            created_at, review_until, state, disputed_at, resolved_at)
        SELECT id, 1, user_id, user_id, 450, 'credit', 500, {grown.NOW}, {grown.NOW}, 'upheld',
            {grown.NOW}, {grown.NOW} {work} AND id NOT IN (SELECT job_id FROM job_reviews)
    """)
    await tx.run(f"""
        INSERT INTO appeals (id, job_id, user_id, reason, created_at, due_at)
        SELECT job_id, job_id, user_id, '', {grown.NOW}, {grown.NOW} FROM job_reviews
        WHERE state = 'upheld'
    """)
    await tx.run(f"""
        INSERT INTO exit_canaries (id, device_id, kind, evidence, found_at)
        SELECT device_id, device_id, 'body', '', {grown.NOW} FROM exits
    """)


async def test_the_payments_of_a_user_in_a_state_are_found_without_a_look_at_those_of_others(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(server, tmp_path, SMALL, forbid_scans=True) as market:
        user = "01900000-0000-7000-8001-000000000001"
        await market.store.write(add_payments, user)
        if server:
            await market.store.write(analyse)
        found = watched(market.store, monkeypatch)
        assert not await market.store.read(
            payment_queries.page, user, status="expired", before="", limit=3
        )
        [asked] = found.taken()
        assert asked.work < PAYMENTS_WORK, asked


async def add_payments(tx: Transaction, user_id: str) -> None:
    """Add a payment for each job: those of the user have failed, and those of others expired."""
    await tx.run(
        f"""
        INSERT INTO payments (id, user_id, provider, status, amount, created_at, closed_at)
        SELECT id, user_id, 'stripe', CASE WHEN user_id = :user_id THEN 'failed' ELSE 'expired' END,
            1000000, {grown.NOW}, {grown.NOW} FROM jobs
        """,
        user_id=user_id,
    )


@pytest.mark.timeout(600)  # a minute of a quiet disk, which a busy machine has in several
async def test_requests_and_sweepers_look_at_as_much_however_large_the_market_is(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: dict[int, dict[str, int]] = {}
    scans: list[str] = []
    for size in (SMALL, LARGE):
        async with filled(server, tmp_path, size, forbid_scans=True) as market:
            found = watched(market.store, monkeypatch)
            looked[size] = {}
            for what, ask in (REQUESTS | SWEEPERS).items():
                await ask(market, grown.Grown(size).buyer_id)
                asked = found.taken()
                looked[size][what] = sum(statement.work for statement in asked)
                scans += [f"{what}: {each}" for each in asked if each.scans or each.inner_scans]
    assert not scans, "\n\n".join(scans)
    grew = {
        what: (work, looked[LARGE][what])
        for what, work in looked[SMALL].items()
        if looked[LARGE][what] > SLACK * work + SMALLEST_WORK
    }
    assert not grew, grew
