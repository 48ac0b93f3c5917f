"""A session above a figure of a rule has a ticket, from a real connection to the list."""

import asyncio
from pathlib import Path

import pytest
from support.base.waiting import until
from support.clients.socks import Client
from support.daemons.service import running_in
from support.market.staff import ROOT

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.staff import tickets
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

    monkeypatch.setattr("market.staff.rules.report", refuse)
    stops = Stops(Context(None, None, None))  # type: ignore[arg-type]
    assert await stops._report(Finding("scan", "session", 1, {}))
    assert "rule scan found session session, without a ticket" in caplog.text


@pytest.mark.parametrize("error", [UnavailableError("away"), MarketError(Code.TICKET_STATE)])
async def test_a_finding_waits_for_the_store_and_for_its_number(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []

    async def refuse_once(_: object, *finding: object) -> None:
        reported.append(finding)
        if len(reported) == 1:
            raise error

    monkeypatch.setattr("market.staff.rules.report", refuse_once)
    monkeypatch.setattr("proxyd.stops.PAUSE_SECONDS", 0.0)
    stops = Stops(Context(None, None, None))  # type: ignore[arg-type]
    finding = Finding("scan", "session", 1, {})
    stops.add(finding)
    running = asyncio.create_task(stops.run())
    try:
        await until(lambda: asyncio.sleep(0, len(reported) == 2), "the finding is reported again")
    finally:
        running.cancel()
    assert reported[0] == reported[1] == ("scan", "session", 1, {})
