"""A session above a figure of a rule has a ticket, from a real connection to the list."""

from pathlib import Path
from typing import Any

import pytest
from support.base.waiting import until
from support.clients.socks import Client
from support.daemons.service import running_in
from support.market.staff import ROOT
from support.targets.targets import echo

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.staff.abuse import tickets
from market.staff.abuse.rule_tickets import Found
from proxyd.ops.access_log.abuse_watch import Finding
from proxyd.wiring.abuse_stops import Stops
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


async def test_a_rule_that_acts_halts_the_session_and_its_buyer_reads_why(tmp_path: Path) -> None:
    rules = {"mail_refusals": 2, "mail_mode": "act", "scan_targets": 3, "scan_mode": "act"}
    settings = {"access_log": {"folder": str(tmp_path / "access")}, "abuse": rules}
    async with running_in(tmp_path, **settings) as service, echo("0.0.0.0") as target:
        person = await service.person(usd="10")
        bought = await service.buy(person)
        service.daemon.helpers.stops.halt_seconds = {"mail": 1, "scan": 1}

        async def log_in() -> tuple[Client, int]:
            client = await Client.open(service.proxy_port)
            return client, await client.log_in(bought.username, bought.password)

        async def halted() -> Any:
            listed = await service.call("GET", "/api/bandwidth/sessions", token=person.token)
            return listed.body["sessions"][0].get("halted")

        async def is_halted() -> bool:
            return await halted() is not None

        held, _ = await log_in()
        assert await held.connect("127.0.0.1", target.port) == 0
        for host in range(2, 20):  # a heavy browser: many targets, nothing fails
            client, _ = await log_in()
            assert await client.connect(f"127.0.0.{host}", target.port) == 0
            await client.close()
        assert not await is_halted()
        for _ in range(3):
            client, _ = await log_in()
            assert await client.connect("127.0.0.1", 25) == 2
            await client.close()
        await until(is_halted, "the rule halts the session")
        with pytest.raises(ConnectionResetError):  # its open connections are cut
            await held.reader.read()
        shown = await halted()
        assert shown["reason"] == "Rule mail, in a minute: port 25, refusals 3."
        assert shown["until"] > shown["since"]
        refused, status = await log_in()
        assert status == 3
        await refused.close()

        async def goes_on() -> bool:
            client, status = await log_in()
            await client.close()
            return status == 0

        await until(goes_on, "the halt ends by itself")
        assert await halted() is None
        assert service.daemon.helpers.stops.counters.stopped == {"mail": 1}
        [row] = await tickets.listed(service.daemon.market.context, ROOT, state=None, limit=9)
        assert (row.category, '"stops": 1' in row.facts) == ("spam", True)


async def test_a_finding_that_cannot_be_reported_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise MarketError(Code.TOO_MANY_TICKETS)

    monkeypatch.setattr("market.staff.abuse.rule_tickets.report", refuse)
    stops = Stops(Context(None, None, None))  # type: ignore[arg-type]
    stops.add(Finding("scan", "session", 1, {}))
    await stops.report()
    assert "rule scan found session session, without a ticket" in caplog.text


async def test_a_finding_waits_for_the_store(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = UnavailableError("the server is away")
    failures, reported = [failure, failure], list[str]()

    async def report(_context: object, found: Found) -> None:
        if failures:
            raise failures.pop()
        reported.append(found.session_id)

    monkeypatch.setattr("market.staff.abuse.rule_tickets.report", report)
    stops = Stops(Context(None, None, None), waiting_max=2)  # type: ignore[arg-type]
    for name in ("first", "second"):
        stops.add(Finding("scan", name, 1, {}))
    for _ in range(3):
        await stops.report()
    assert reported == ["first", "second"]
    lines = [each for each in caplog.messages if "wait for the store" in each]
    assert len(lines) == 1


async def test_new_findings_take_the_places_of_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = list[str]()

    async def report(_context: object, found: Found) -> None:
        reported.append(found.session_id)

    monkeypatch.setattr("market.staff.abuse.rule_tickets.report", report)
    stops = Stops(Context(None, None, None), waiting_max=2)  # type: ignore[arg-type]
    for name in ("old", "new", "newest"):
        stops.add(Finding("scan", name, 1, {}))
    await stops.report()
    assert reported == ["new", "newest"]
