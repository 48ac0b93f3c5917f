"""The rescue of an operator: one short login, notices to all, and an end by another operator."""

import pytest
from support.market.market import Market
from support.market.staff import FACTORS, PASSWORD, ROOT, acting, code_at, member

from market.accounts.mail import Message, decoded
from market.base.errors import Code, MarketError
from market.staff.base.chain import audit_log
from market.staff.base.roles import Role, Via
from market.staff.finding import history
from market.staff.members import accounts, rescue
from market.staff.members.logins import IDLE_SECONDS, Proof, StaffLogin, StaffLogins
from market.staff.members.rescue import LIFETIME_SECONDS, Post
from market.staff.site.alerts import Alerts

SECRET = b"k" * 32


def logins_of(market: Market) -> StaffLogins:
    return StaffLogins(market.context, market.passwords, FACTORS, SECRET)


async def rescued(market: Market, name: str) -> StaffLogin:
    post = Post(market.emails, "Ada's")
    return await rescue.rescue(market.context, logins_of(market), post, ROOT, name, "all lost")


async def mails(market: Market) -> list[Message]:
    """Return the waiting e-mails."""
    return [
        decoded(market.emails.opened(row) or b"")
        for row in await market.emails.due(again=False, limit=100)
    ]


async def code_of(market: Market, **of: object) -> Code:
    with pytest.raises(MarketError) as error:
        await rescue.acknowledge(market.context, **of, why="seen")  # type: ignore[arg-type]
    return error.value.code


@pytest.mark.both_engines
async def test_the_drill_of_a_rescue(market: Market) -> None:
    olga, omar = [await member(market, Role.OPERATOR, name) for name in ("olga", "omar")]
    lea = await member(market, Role.OPERATOR, "lea")
    await member(market, Role.SUPPORT, "sam")
    await accounts.lock(market.context, ROOT, lea.email, "left")
    login = await rescued(market, olga.email)

    # One login, for half an hour.
    logins = logins_of(market)
    caller = await logins.authenticate(login.token, Via.API)
    assert (caller.staff_id, caller.role) == (olga.id, Role.OPERATOR)
    end = market.clock.now + LIFETIME_SECONDS
    assert caller.expires_at == login.expires_at == end
    market.clock.now += IDLE_SECONDS - 1
    await logins.authenticate(login.token, Via.API)
    market.clock.now = end
    with pytest.raises(MarketError):
        await logins.authenticate(login.token, Via.API)

    # An e-mail to every operator that is not locked, and a row of the log.
    sent = await mails(market)
    assert sorted(each.to for each in sent) == [olga.email, omar.email]
    assert f"root of the machine made a login of the operator {olga.email}" in sent[0].text
    assert login.token not in str(sent)
    [act] = await history.read(market.context, ROOT, action="staff.rescue", limit=10)
    assert (act.subject_id, act.unix_user, act.text) == (olga.id, "root", "all lost")

    # The alert stays until an earlier operator acknowledges it.
    alerts = Alerts(market.context, market.emails, ("ops@example.com",), "Ada's", 6)
    assert (await alerts.look([])).rescues == 1
    assert any(each.subject == "Ada's: alert: rescue" for each in await mails(market))
    [row] = await rescue.listed(market.context, ROOT)
    newer = await member(market, Role.OPERATOR, "newer")
    finance = await member(market, Role.FINANCE)
    for author in (acting(olga), acting(newer), acting(finance)):
        assert await code_of(market, author=author, rescue_id=row.id) is Code.NOT_PERMITTED
    unknown = await code_of(market, author=acting(omar), rescue_id=omar.id)
    assert unknown is Code.STAFF_UNCHANGED
    assert (await alerts.look([])).rescues == 1
    await rescue.acknowledge(market.context, acting(omar), row.id, "she lost it")
    assert (await alerts.look([])).rescues == 0
    again = await code_of(market, author=acting(omar), rescue_id=row.id)
    assert again is Code.STAFF_UNCHANGED
    [row] = await rescue.listed(market.context, ROOT)
    assert row.acknowledged_by == omar.email
    report = await audit_log(market.store)
    assert not [line for each in report.checks for line in each.differences]


async def test_only_an_operator_that_is_not_locked_is_rescued(market: Market) -> None:
    olga, sam = await member(market, Role.OPERATOR), await member(market, Role.SUPPORT)
    lea = await member(market, Role.OPERATOR, "lea")
    await accounts.lock(market.context, ROOT, lea.email, "left")
    for name, code in (
        (sam.email, Code.NOT_PERMITTED),
        (lea.email, Code.NOT_PERMITTED),
        ("nobody@example.com", Code.STAFF_NOT_FOUND),
    ):
        with pytest.raises(MarketError) as error:
            await rescued(market, name)
        assert error.value.code is code
    assert await mails(market) == []
    assert await rescue.listed(market.context, ROOT) == []

    # A rescue is no proof: the password and the codes of the member stay as they were.
    await rescued(market, olga.email)
    proof = Proof(olga.email, PASSWORD, code_at(olga, market.clock.now))
    await logins_of(market).login(proof, address="192.0.2.7", via=Via.API)
