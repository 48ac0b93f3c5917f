"""The rows of people at the start of each trial: logins, keys, codes, webhooks, files, rewards."""

from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any

from msgspec.structs import replace
from support.market.cases import failed_canary
from support.market.jobs import device_of
from support.market.market import RULES, STAFF_SEALING, Market

from market.accounts.accounts import Caller
from market.accounts.device_codes import Begun
from market.accounts.keys import NewKey
from market.accounts.proofs import Proof
from market.accounts.referrals import Referrals
from market.accounts.scopes import Grant, Maker, Scope
from market.accounts.spending import Spender, SpendLimits
from market.dispatch import sample_tasks
from market.dispatch.sample_tasks import SampleSizes
from market.dispatch.samples import Samples, SampleTerms, _Usual
from market.files import artifacts
from market.files.artifacts import ArtifactTerms
from market.money.money import MICRO, Currency
from market.notify.webhooks import Attempt
from market.recovery import recovery
from market.staff.abuse import tickets
from market.staff.base.roles import Machine, Role
from market.staff.members import accounts
from market.staff.members.factors import Factors
from market.staff.money import money
from market.staff.site import site
from storage.accounts import users
from storage.devices.devices import DeviceRow
from storage.files.artifacts import ArtifactRow
from storage.staff.stopping import suspending

LIMIT = 12 * MICRO  # of a key, in credits: one order of 10 is within it, two are not
PASSWORD = "long enough"
SCOPES = (Scope.JOBS_WRITE, Scope.DEVICES_WRITE, Scope.WEBHOOKS_WRITE)
PRICE = MICRO // 10
PAYER = "payer@example.com"
SMALL_TASKS = SampleSizes((10, 20), (10, 20), (10, 20), (10, 20))  # made in no time
LATE_REWARDS = replace(RULES.rewards, needs_verified=True)
KEPT_KEY = "content"  # of the bytes of a whole file
ARTIFACTS = ArtifactTerms()


@dataclass
class Belongings:
    """Rows of people, by name."""

    callers: dict[str, Caller] = field(default_factory=dict)
    codes: dict[str, Begun] = field(default_factory=dict)
    proofs: dict[str, Proof] = field(default_factory=dict)
    hooks: dict[str, str] = field(default_factory=dict)
    deliveries: list[Attempt] = field(default_factory=list)
    files: dict[str, ArtifactRow] = field(default_factory=dict)
    referral_code: str = ""
    key_id: str = ""
    key: Grant | None = None
    spender: Spender | None = None
    samples: list[Any] = field(default_factory=list)  # one for each node to give
    given: str = ""  # the job of a sample that a device has
    failed: str = ""  # the job of a sample with a wrong result
    finding: str = ""  # about a barred exit
    sampled: DeviceRow | None = None
    second_sampled: DeviceRow | None = None
    staff: dict[str, str] = field(default_factory=dict)
    ticket: int = 0
    invitation: str = ""
    request: str = ""  # a correction of the user that waits for a second person


def samples(market: Market) -> Samples:
    """Return what gives samples; all devices are due."""
    terms = SampleTerms(PAYER, 50 * MICRO, PRICE)
    return Samples(market.context, terms, market.specs, market.bounds, SMALL_TASKS)


async def _staff(here: Market, rows: Belongings, user: str) -> None:
    """Make two operators, so that one may be locked, a ticket, an invitation, and a correction that
    waits.
    """
    factors = Factors(STAFF_SEALING)
    for name in ("first", "second"):
        created = await accounts.create(
            here.context,
            here.passwords,
            factors,
            Machine("root"),
            email=f"{name}@staff.example.com",
            password=PASSWORD,
            role=Role.OPERATOR,
            why="to start with",
        )
        rows.staff[name] = created.id
    asked = await money.correct(
        here.context,
        Machine("first"),
        user,
        dict.fromkeys(Currency, 0),
        amount=MICRO,
        currency=Currency.CREDIT,
        reference="waits",
        why="asked",
    )
    rows.request = asked.id
    spam, nothing = tickets.Category.SPAM, tickets.Facts()
    rows.ticket = (
        await tickets.open_ticket(here.context, Machine("root"), spam, nothing, "a complaint")
    ).number
    invited = await site.invite(here.context, Machine("root"), uses=2, days=1, why="a friend")
    rows.invitation = invited.row.id


async def build(here: Market, user: str, worker: str) -> Belongings:
    """Make the rows of a user, and samples for a worker."""
    rows = Belongings()
    await _logins(here, rows)
    await _keys(here, rows, user)
    await _files(here, rows, user)
    await _samples(here, rows, worker)
    await _staff(here, rows, user)
    rows.referral_code = (await here.referrals.standing(user)).code
    late = Referrals(here.context, LATE_REWARDS)
    referred = await here.person()
    await late.apply(referred, rows.referral_code)
    await here.store.write(users.set_email_verified, referred, here.clock.now)
    now = here.clock.now
    await here.store.write(
        suspending.suspend, referred, ["keys"], shown_id="none", now=now - 2, ends_at=now - 1
    )
    return rows


async def _logins(here: Market, rows: Belongings) -> None:
    for name in ("ada", "grace"):
        email = f"{name}@example.com"
        login, _ = await here.accounts.register(username=name, email=email, password=PASSWORD)
        other = await here.accounts.login(email=email, password=PASSWORD)
        for which, each in ((name, login), (f"{name} again", other)):
            rows.callers[which] = await here.accounts.authenticate(each.token)
        user_id = login.profile.user_id
        for purpose in ("reset", "verify"):
            make = here.recovery._proofs.of_ownership
            make = make if purpose == "reset" else here.recovery._proofs.of_address
            proof = rows.proofs[f"{purpose} {name}"] = make(user_id, email)
            await here.store.write(recovery._renew, proof)
        await here.recovery.forgot(email)  # the request stays in the outbox
        rows.codes[f"asked of {name}"] = await here.device_codes.begin(
            "a program", SCOPES, client="198.51.100.1"
        )
        begun = rows.codes[f"approved by {name}"] = await here.device_codes.begin(
            "another program", SCOPES, client="198.51.100.1"
        )
        await here.device_codes.answer(rows.callers[name], begun.user_code, is_approved=True)


async def _keys(here: Market, rows: Belongings, user: str) -> None:
    issued = await here.keys.create(
        user, NewKey(name="k", scopes=SCOPES, spend_limits=SpendLimits(credit=LIMIT))
    )
    rows.key_id = issued.row.id
    rows.spender = Spender(issued.row.id, user)
    rows.key = (await here.keys.authenticate(issued.key, "")).key
    maker = Maker(key=rows.key)
    await here.devices.create(
        user, name="rig", device_type="server", min_price_usd=None, maker=maker
    )
    for name, made_by in (("of the key", maker), ("of the login", Maker())):
        made = await here.webhooks.create(
            user,
            url=f"https://{'k' if made_by.key else 'l'}.example.com/",
            types=["webhook.created"],
            description="",
            maker=made_by,
        )
        rows.hooks[name] = made.endpoint.id
    for name in rows.hooks:
        await here.webhooks.test(user, rows.hooks[name])
    for row in await here.webhooks.due(but=(), limit=10):
        attempt = await here.webhooks.begin(row.id)
        assert attempt is not None
        rows.deliveries.append(attempt)


async def _files(here: Market, rows: Belongings, user: str) -> None:
    """Make an input that is whole, and one that is announced; their bytes are in no folder."""
    now = here.clock.now
    for name in ("whole", "announced", "same again"):
        content = b"same" if name != "whole" else b"whole"
        row = file_of(here, user, name, content)
        rows.files[name] = await here.store.write(artifacts._announce, row, ARTIFACTS)
    whole = rows.files["whole"]
    rows.files["whole"] = await here.store.write(
        artifacts._finish, whole.id, KEPT_KEY, True, None, now
    )


def file_of(
    here: Market, user: str, name: str, content: bytes, *, job_id: str | None = None
) -> ArtifactRow:
    """Return a file that was not sent yet: an input, or an output of a job."""
    return ArtifactRow(
        id=here.identifiers.new(),
        user_id=user,
        job_id=job_id,
        attempt=None if job_id is None else 1,
        kind="input" if job_id is None else "output",
        name=name,
        digest=sha256(content).hexdigest(),
        size_bytes=len(content),
        reference="",
        content_id=None,
        created_at=here.clock.now,
        whole_at=None,
        expires_at=here.clock.now,
    )


async def _samples(here: Market, rows: Belongings, worker: str) -> None:
    await here.accounts.register(username="payer", email=PAYER, password=PASSWORD)
    await here.deposit(PAYER, 100 * MICRO, currency=Currency.CREDIT)
    made, choose = samples(here), Random(11)
    rows.sampled = await device_of(here, worker)

    def new() -> Any:
        task = sample_tasks.make(choose, SMALL_TASKS)
        return made._new(task, PRICE, _Usual([], 0))

    given = await here.store.write(made._give, rows.sampled.id, new())
    assert given is not None
    rows.given = given.job_id
    rows.samples = [new(), new()]
    rows.second_sampled = await device_of(here, worker)
    third = await device_of(here, worker)
    failed = await here.store.write(made._give, third.id, new())
    assert failed is not None
    await here.jobs.complete(third, failed.job_id, "wrong")
    rows.failed = failed.job_id
    _, rows.finding = await failed_canary(here, worker)
