"""A session above a figure of a rule has a ticket, from a real connection to the list."""

from pathlib import Path

import pytest
from support.base.waiting import until
from support.clients.socks import Client
from support.daemons.service import running_in
from support.market.staff import ROOT

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.staff.abuse import tickets
from proxyd.ops.abuse_watch import Finding
from proxyd.stops import Stops
from storage.engines.errors import UnavailableError


async def test_refused_mail_ports_open_a_ticket(tmp_path: Path) -> None:
    settings = {
        "access_log": {"folder": str(tmp_path / "access")},
        "abuse": {"mail_refusals": 2},
    }
    async with running_in(tmp_path, **settings) as service:
        person = await service.person(usd="10")
        bought = await service.buy(person)
        for _ in range(3):
            client = await Client.open(service.proxy_port)
            await client.log_in(bought.username, bought.password)
            assert await client.connect("127.0.0.1", 25) == 2
            await client.close()
        context = service.daemon.market.context

        async def has_ticket() -> bool:
            return bool(await tickets.listed(context, ROOT, state=None, limit=9))

        await until(has_ticket, "the rule opens a ticket")
        [row] = await tickets.listed(context, ROOT, state=None, limit=9)
        assert row.category == "spam"
        assert bought.id in row.facts


async def test_a_finding_that_cannot_be_reported_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise MarketError(Code.TOO_MANY_TICKETS)

    monkeypatch.setattr("market.staff.abuse.rules.report", refuse)
    stops = Stops(Context(None, None, None))  # type: ignore[arg-type]
    stops.add(Finding("scan", "session", 1, {}))
    await stops.report()
    assert "rule scan found session session, without a ticket" in caplog.text


@pytest.mark.parametrize(
    "failure", [UnavailableError("the server is away"), MarketError(Code.TICKET_STATE)]
)
async def test_a_finding_waits_for_the_store_and_for_other_tickets(
    failure: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, reported = [failure, failure], list[str]()

    async def report(_context: object, rule: str, session_id: str, *_: object) -> None:
        if failures:
            raise failures.pop()
        reported.append(session_id)

    monkeypatch.setattr("market.staff.abuse.rules.report", report)
    stops = Stops(Context(None, None, None), waiting_max=2)  # type: ignore[arg-type]
    for name in ("first", "second"):
        stops.add(Finding("scan", name, 1, {}))
    for _ in range(3):
        await stops.report()
    assert reported == ["first", "second"]
    lines = [each for each in caplog.messages if "wait for the store" in each]
    assert len(lines) == isinstance(failure, UnavailableError)


async def test_new_findings_take_the_places_of_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = list[str]()

    async def report(_context: object, rule: str, session_id: str, *_: object) -> None:
        reported.append(session_id)

    monkeypatch.setattr("market.staff.abuse.rules.report", report)
    stops = Stops(Context(None, None, None), waiting_max=2)  # type: ignore[arg-type]
    for name in ("old", "new", "newest"):
        stops.add(Finding("scan", name, 1, {}))
    await stops.report()
    assert reported == ["new", "newest"]
