"""An exit that lies is found in its first round, cut, barred and unpaid; an honest one is not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.base.names import Localhost
from support.base.waiting import until
from support.clients.socks import Client, request
from support.clients.story import buy, used
from support.daemons.bounded import exit_bounds
from support.daemons.service import Bought, Service, running_in
from support.exits.canaries import (
    EVIL,
    OTHER,
    Pages,
    answer,
    leading_to,
    saying,
    serving_pages,
    serving_tls,
    swallow,
)
from support.exits.device import (
    EXITS,
    Consented,
    Device,
    Obey,
    answering,
    carry,
    consented,
    listener_of,
    paused,
    running_with_agent,
)
from support.targets.targets import serving
from support.targets.tls import make_certificate

from market.exits import canaries as exit_canaries
from market.exits.canaries import ExitRecord
from proxyctl.protocol.frames import SECURE, SECURE_TICKETS, Dial, Dialled, DialOutcome, Preface
from proxyd.exits.attached.attached import UNPROVEN
from proxyd.exits.nodes.remote import announcement
from proxyd.exits.watching import rounds
from proxyd.exits.watching.agenda import SWEEP_LEAST
from proxyd.exits.watching.bounds import CanaryBounds
from proxyd.exits.watching.fetch import page_of
from proxyd.exits.watching.rounds import Rounds
from proxyd.exits.watching.truths import halves
from proxyd.ops.processes.listening import bound_port
from storage.engines.errors import UnavailableError


@pytest.fixture
async def pages(tmp_path: Path) -> AsyncIterator[Pages]:
    (tmp_path / "pages").mkdir()
    async with serving_pages(tmp_path / "pages") as served:
        yield served


@asynccontextmanager
async def looking(
    folder: Path, pages: Pages, urls: list[str] | None = None, **bounds: float
) -> AsyncIterator[Service]:
    """Run a daemon that looks whether exits are honest, within these bounds (`CanaryBounds`)."""
    wanted = {"canaries": pages.urls if urls is None else urls, "ports": pages.ports}
    section = {**EXITS["exits"], **wanted}
    looks = exit_bounds(canaries=CanaryBounds(**{"twice_seconds": 0.0, **bounds}))
    async with running_in(folder, bounds=looks, exits=section, geo=EXITS["geo"]) as service:
        yield service
        await service.assert_audit()


async def attached(service: Service, made: Consented, obey: Obey, leaves_from: str = "") -> Device:
    """Attach a device that obeys in a way from the beginning."""
    device = Device(bound_port(service.daemon.listeners.exits))
    device.obey, device.leaves_from = obey, leaves_from
    return await device.attach(made.first)


def counted(service: Service) -> Any:
    return listener_of(service).counters


async def record(service: Service, device_id: str) -> ExitRecord:
    return await exit_canaries.record(service.daemon.market.context, device_id)


async def is_barred(service: Service, device_id: str) -> None:
    async def reads() -> bool:
        return (await record(service, device_id)).row.barred_at is not None

    await until(reads, "it is barred")


async def reply_to(service: Service, bought: Bought, port: int) -> int:
    client = await Client.open(service.proxy_port)
    assert await client.log_in(bought.username, bought.password) == 0
    code = await client.connect("127.0.0.1", port)
    await client.close()
    return code


async def test_an_honest_exit_passes_and_no_buyer_pays_for_it(tmp_path: Path, pages: Pages) -> None:
    async with looking(tmp_path, pages) as service:
        made = await consented(service)
        device = await attached(service, made, carry)
        await until(lambda: counted(service).canaries["passed"] == 1, "it has passed")
        assert pages.asked == 9  # two of each from here, one of each through the exit
        assert {each.port for each in device.dials} == set(pages.ports)
        entry = listener_of(service).roster.by_device[made.device_id]
        assert entry.is_proven
        assert not entry.relays
        mine = await service.call("GET", "/api/exits/me", token=made.owner.token)
        assert mine.body["exits"][0]["state"] == "online"
        assert mine.body["exits"][0]["bytes_total"] == 0
        assert mine.body["exits"][0]["reason"] == ""
        metrics = service.daemon.helpers.metrics.render().decode()
        assert 'proxyd_exit_canaries_total{outcome="passed"} 1.0' in metrics

        # It has passed for now: when it attaches again it is used at once, and looked at later.
        await device.kill()
        await until(lambda: len(listener_of(service)) == 0)
        again = await attached(service, made, carry)
        assert listener_of(service).roster.by_device[made.device_id].is_proven
        assert again.dials == []
        await again.kill()


@pytest.mark.parametrize(("encrypt", "share"), [("all", 0.0), ("orders", 1.0), ("orders", 0.0)])
async def test_an_exit_that_carries_tls_is_checked_under_tls(
    tmp_path: Path, pages: Pages, encrypt: str, share: float
) -> None:
    """Otherwise a device could distinguish buyers from canaries, and be honest only to canaries."""
    bounds = exit_bounds(canaries=CanaryBounds(secure_share=share, twice_seconds=0.0))
    section = {**EXITS["exits"], "canaries": pages.urls, "ports": pages.ports, "encrypt": encrypt}
    async with running_with_agent(tmp_path, bounds=bounds, exits=section) as service:
        await until(lambda: counted(service).canaries["passed"] == 1, "it has passed")
        [entry] = listener_of(service).roster.by_device.values()
        assert (entry.pool.tickets._next > 1) == (encrypt == "orders")
        assert (entry.secure.demand.rate > 0) == (encrypt == "all" or share > 0)
        assert (entry.pool.demand.rate > 0) == (encrypt == "orders" and share == 0)


def lies(pages: Pages) -> dict[str, Obey]:
    plain = {pages.http, pages.other}
    return {
        "content": saying(answer(EVIL), when=lambda dial: dial.port in plain),
        "junk": saying(b"\x00\x01 not what was asked for"),
        "silence": swallow,
    }


@pytest.mark.parametrize("kind", ["content", "junk", "silence"])
async def test_a_lie_is_found_in_one_round_cut_and_unpaid(
    tmp_path: Path, pages: Pages, kind: str, caplog: Any
) -> None:
    patience = {"fetch_seconds": 1.5} if kind == "silence" else {}
    async with looking(tmp_path, pages, **patience) as service:
        made = await consented(service)
        device = await attached(service, made, lies(pages)[kind])
        await until(lambda: device.is_over, "it is cut")
        await is_barred(service, made.device_id)
        assert device.sorry is not None
        assert device.sorry.code == "exit_barred"
        assert counted(service).canary_failures == {kind: 1}
        assert counted(service).canaries["failed"] == 1
        assert f"exit {made.device_id}: barred, {kind}: " in caplog.text

        found = await record(service, made.device_id)
        assert [each.kind for each in found.findings] == [kind]
        assert "127.0.0.1" in found.findings[0].evidence
        assert [each.event for each in found.history] == ["given", "barred"]
        mine = await service.call("GET", "/api/exits/me", token=made.owner.token)
        assert mine.body["exits"][0]["state"] == "barred"
        assert device.sorry.words in mine.body["exits"][0]["reason"]
        assert "127.0.0.1" not in mine.body["exits"][0]["reason"]

        again = await attached(service, made, carry)
        assert again.sorry is not None
        assert again.sorry.code == "exit_barred"
        assert device.sorry.words in again.sorry.words
        await device.kill()
        await again.kill()


async def test_a_wrong_certificate_is_found(tmp_path: Path, pages: Pages) -> None:
    (tmp_path / "evil").mkdir()
    evil = make_certificate(tmp_path / "evil").server
    async with serving_tls(pages.answer, evil) as port, looking(tmp_path, pages) as service:
        made = await consented(service)
        device = await attached(
            service, made, leading_to(port, lambda dial: dial.port == pages.https)
        )
        await is_barred(service, made.device_id)
        assert counted(service).canary_failures == {"certificate": 1}
        await device.kill()


class AtExit:
    """Chance that has every name looked up at the exit."""

    def random(self) -> float:
        return 0.0

    def sample(self, pages: list[Any], count: int) -> list[Any]:
        return pages[:count]

    def choice(self, pages: list[Any]) -> Any:
        return pages[0]


async def test_names_that_lead_elsewhere_at_the_exit_are_found(
    tmp_path: Path, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def evil(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(EVIL))

    urls = [f"http://localhost:{pages.http}/page"]
    async with serving(evil) as other, looking(tmp_path, pages, urls) as service:
        looks = service.daemon.exit_port.canaries
        looks._rounds._chance = AtExit()
        ways = replace(looks._truths._ways, resolver=Localhost("127.0.0.1"))
        looks._truths._ways = looks._rounds._ways = ways
        await until(lambda: bool(looks._truths), "the truth is known")
        made = await consented(service)
        device = await attached(
            service, made, leading_to(other.port, lambda dial: isinstance(dial.host, str))
        )
        await is_barred(service, made.device_id)
        assert counted(service).canary_failures == {"dns": 1}
        await device.kill()


@pytest.mark.parametrize("is_made_up", [True, False])
async def test_an_exit_that_reports_an_unrequested_dial_is_barred(
    tmp_path: Path, pages: Pages, is_made_up: bool
) -> None:
    async with looking(tmp_path, pages) as service:
        made = await consented(service)
        device = await attached(service, made, carry)
        await until(lambda: counted(service).canaries["passed"] == 1, "it has passed")
        await until(lambda: bool(counted(service).parked), "a connection waits")
        number = 10**6 if is_made_up else next(iter(device.parked))
        for _ in range(10):
            device.send(Dialled(number, DialOutcome.CONNECTED, 0, None, 0))
        await is_barred(service, made.device_id)
        assert len((await record(service, made.device_id)).findings) == 1
        assert counted(service).canary_failures == {"unasked": 1}
        await device.kill()


async def park_securely(device: Device) -> None:
    """Open a work connection under TLS, and keep it for as long as the device is attached."""
    await until(lambda: any(each >= SECURE_TICKETS for each in device.tickets), "it has tickets")
    number = next(each for each in device.tickets if each >= SECURE_TICKETS)
    assert device.welcome is not None
    work = Device(device.port)
    await work.connect()
    device.spawn(closed_with_it(work))
    preface = Preface(device.welcome.attachment, number, device.tickets.pop(number))
    work.send_raw(preface.encode())


async def closed_with_it(work: Device) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await work.kill()


@pytest.mark.parametrize("is_secure", [False, True])
async def test_an_answer_that_comes_late_is_no_lie(
    tmp_path: Path, pages: Pages, is_secure: bool
) -> None:
    late: list[Dial] = []

    async def too_late(device: Device, dial: Dial) -> None:
        late.append(dial)
        if not is_secure:
            device.take(dial.number).close()

    # This device opens nothing under TLS before `park_securely`: a canary would wait in vain.
    async with looking(tmp_path, pages, secure_share=0.0) as service:
        made = await consented(service)
        if is_secure:
            made = replace(made, first=made.first._replace(features=(SECURE,)))
        device = await attached(service, made, carry)
        await until(lambda: counted(service).canaries["passed"] == 1, "it has passed")
        device.obey = too_late
        service.wishes = "-country-xx"
        if is_secure:
            service.wishes += "-secure"
            listener_of(service).roster.by_device[made.device_id].secure.open()
            await park_securely(device)
        _, bought = await buy(service)
        client = await Client.open(service.proxy_port)
        assert await client.log_in(bought.username, bought.password) == 0
        await client.send(request("127.0.0.1", pages.http))
        await until(lambda: bool(late), "it is ordered")
        client.reset()  # an end of its stream might be no more than that: the dial would go on
        entry = listener_of(service).roster.by_device[made.device_id]
        await until(lambda: not entry.dials, "no dial waits any more")
        for dial in late:
            device.send(Dialled(dial.number, DialOutcome.CONNECTED, 0, None, 0))
        heard = entry.pulse.heard_at
        await until(lambda: entry.pulse.heard_at > heard, "it is heard")
        assert not device.is_over
        assert not counted(service).canary_failures
        await device.kill()


async def test_a_flood_bars(tmp_path: Path, pages: Pages) -> None:
    async with looking(tmp_path, pages) as service:
        made = await consented(service)
        device = await attached(service, made, carry)
        while not device.is_over:
            device.send(paused("x" * 400))
            await asyncio.sleep(0)
        await is_barred(service, made.device_id)
        assert counted(service).canary_failures == {"flood": 1}
        await device.kill()


async def test_until_it_has_passed_an_exit_carries_only_443(tmp_path: Path, pages: Pages) -> None:
    allowed = asyncio.Event()

    async def waiting(device: Device, dial: Dial) -> None:
        await allowed.wait()
        await carry(device, dial)

    async with looking(tmp_path, pages) as service:
        service.wishes = "-country-xx"
        _, bought = await buy(service)
        made = await consented(service)
        device = await attached(service, made, waiting)
        await until(lambda: bool(device.dials), "it is looked at")
        entry = listener_of(service).roster.by_device[made.device_id]
        assert not entry.is_proven
        assert await reply_to(service, bought, pages.http) == 2
        assert not entry.allows(80)
        assert not entry.allows(443)  # its owner does not
        assert announcement(entry).paused == UNPROVEN
        mine = await service.call("GET", "/api/exits/me", token=made.owner.token)
        [shown] = mine.body["exits"]
        assert (shown["state"], shown["reason"]) == ("resting", UNPROVEN)
        entry.grant(entry.limits._replace(ports=(*pages.ports, 443)))
        assert entry.allows(443)
        assert announcement(entry).limits.ports == (443,)
        mine = await service.call("GET", "/api/exits/me", token=made.owner.token)
        [shown] = mine.body["exits"]
        assert (shown["state"], "443 alone" in shown["reason"]) == ("online", True)
        allowed.set()
        await until(lambda: entry.is_proven, "it has passed")
        assert (announcement(entry).paused, announcement(entry).limits) == ("", entry.limits)
        assert await reply_to(service, bought, pages.http) == 0
        await device.kill()


async def test_one_silence_is_a_hiccup(tmp_path: Path, pages: Pages) -> None:
    silent: list[int] = []

    def is_first(_: Dial) -> bool:
        silent.append(1)
        return len(silent) == 1

    async with looking(tmp_path, pages) as service:
        made = await consented(service)
        device = await attached(service, made, saying(b"", when=is_first))
        await until(lambda: counted(service).canaries["unknown"] == 1, "nothing is proven")
        assert (await record(service, made.device_id)).row.barred_at is None
        assert len(device.dials) == 4  # another page was tried for it
        await device.kill()


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_slow_line_is_no_black_hole(tmp_path: Path, pages: Pages, is_tls: bool) -> None:
    """Its owner allows few bytes a second, or a buyer has filled the line."""
    urls = pages.urls[2:] if is_tls else pages.urls[:2]
    async with looking(tmp_path, pages, urls, fetch_seconds=1.5) as service:
        looks = service.daemon.exit_port.canaries
        await until(lambda: len(looks._truths) == len(urls), "the truth is known")
        pages.stalls = asyncio.Event()
        made = await consented(service)
        device = await attached(service, made, carry, OTHER)
        await until(lambda: counted(service).canaries.total() == 1, "a round is over")
        assert counted(service).canaries == {"unknown": 1}
        pages.stalls.set()
        await device.kill()


async def test_an_answer_of_a_site_itself_over_tls_is_no_lie(tmp_path: Path, pages: Pages) -> None:
    async with looking(tmp_path, pages, pages.urls[2:]) as service:
        looks = service.daemon.exit_port.canaries
        await until(lambda: bool(looks._truths), "the truth is known")
        made = await consented(service)
        pages.others = b"not for your address"
        device = await attached(service, made, carry, OTHER)
        await until(lambda: counted(service).canaries.total() == 1, "a round is over")
        assert counted(service).canaries == {"unknown": 1}
        await device.kill()


async def test_an_exit_that_a_page_turns_away_carries_443_until_it_passes(
    tmp_path: Path, pages: Pages
) -> None:
    """A buyer may have asked for the page through it until it was turned away."""
    async with looking(tmp_path, pages, again_seconds=0.05) as service:
        made = await consented(service)
        device = await attached(service, made, carry)
        await until(lambda: counted(service).canaries["passed"] == 1, "it has passed")
        entry = listener_of(service).roster.by_device[made.device_id]
        assert entry.is_proven
        looks = service.daemon.exit_port.canaries
        plain = {pages.http, pages.other}
        device.obey = saying(
            b"HTTP/1.1 429 Too Many Requests\r\n\r\nlater", when=lambda dial: dial.port in plain
        )
        looks._proven.clear()
        looks._schedule(entry, 0.0, 0)
        await until(lambda: counted(service).canaries["unknown"] > 0, "nothing is proven")
        assert not counted(service).canary_failures
        assert not entry.is_proven
        device.obey = carry
        await until(lambda: entry.is_proven, "it has passed again")
        await device.kill()


async def test_a_mistake_of_ours_ends_no_looking(
    tmp_path: Path, pages: Pages, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    async with looking(tmp_path, pages, again_seconds=0.05) as service:
        looks = service.daemon.exit_port.canaries
        await until(lambda: len(looks._truths) == 3, "the truth is known")
        mistakes, fetch = [ValueError("a mistake")], rounds.fetch

        async def wrong(*given: Any) -> Any:
            if mistakes:
                given[0].close()
                raise mistakes.pop()
            return await fetch(*given)

        monkeypatch.setattr(rounds, "fetch", wrong)
        made = await consented(service)
        device = await attached(service, made, carry)
        await until(lambda: counted(service).canaries["passed"] == 1, "it has passed")
        assert "a mistake" in caplog.text
        await device.kill()


async def test_one_silence_of_a_name_that_the_exit_looks_up_is_a_hiccup(
    tmp_path: Path, pages: Pages
) -> None:
    silent: list[int] = []

    def is_first(_: Dial) -> bool:
        silent.append(1)
        return len(silent) == 1

    urls = [f"http://localhost:{pages.http}/page"]
    async with looking(tmp_path, pages, urls) as service:
        looks = service.daemon.exit_port.canaries
        looks._rounds._chance = AtExit()
        ways = replace(looks._truths._ways, resolver=Localhost("127.0.0.1"))
        looks._truths._ways = looks._rounds._ways = ways
        await until(lambda: bool(looks._truths), "the truth is known")
        made = await consented(service)

        async def once_silent(device: Device, dial: Dial) -> None:
            if is_first(dial):
                await saying(b"")(device, dial)
            else:
                await leading_to(pages.http, lambda _: True)(device, dial)

        device = await attached(service, made, once_silent)
        await until(lambda: counted(service).canaries.total() == 1, "a round is over")
        assert counted(service).canaries == {"unknown": 1}
        await device.kill()


async def test_an_exit_whose_line_dies_is_not_barred(tmp_path: Path, pages: Pages) -> None:
    async def dying(device: Device, dial: Dial) -> None:
        device.answers_pings = False
        await swallow(device, dial)

    async with looking(tmp_path, pages, fetch_seconds=0.3, alive_seconds=0.3) as service:
        made = await consented(service)
        device = await attached(service, made, dying)
        await until(lambda: counted(service).canaries["unknown"] == 1, "nothing is proven")
        assert not counted(service).canary_failures
        await device.kill()


async def test_pages_of_first_rounds_are_not_used_in_later_ones(
    tmp_path: Path, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = (f"http://127.0.0.1:{pages.http}", f"https://127.0.0.1:{pages.https}")
    urls = [f"{site}/{number}" for site in sites for number in range(4)]
    async with looking(tmp_path, pages, urls) as service:
        looker = service.daemon.exit_port.canaries
        check, asked = looker._rounds._check, []

        async def noted(entry: Any, page: Any) -> Any:
            asked.append(page.url)
            return await check(entry, page)

        monkeypatch.setattr(Rounds, "_check", lambda _, entry, page: noted(entry, page))
        made = await consented(service)
        first_rounds = set()
        device = await attached(service, made, carry)
        await until(lambda: counted(service).canaries["passed"] == 1, "it has passed")
        first_rounds.update(asked)
        entry = listener_of(service).roster.by_device[made.device_id]
        asked.clear()
        for _ in range(5):
            assert await looker._rounds.run(entry) is None
        assert asked
        assert not first_rounds.intersection(asked)
        asked.clear()
        # A page has turned it away: it carries 443 alone again.
        listener_of(service)._base.verdicts.doubt(entry)
        assert await looker._rounds.run(entry) is None
        assert set(asked) <= {*urls[:4:2], *urls[4::2]}
        await device.kill()


async def test_no_round_begins_with_a_call(
    tmp_path: Path, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exit sees its calls: an exit that knew that pages follow would be honest only to them."""
    async with looking(tmp_path, pages) as service:
        looker = service.daemon.exit_port.canaries
        calls: list[bool] = []

        async def noted(_: Any, *, other_family: bool = False) -> bool:
            calls.append(other_family)
            return True

        monkeypatch.setattr(looker._origins, "look", noted)
        made = await consented(service)
        device = await attached(service, made, carry)
        await until(lambda: counted(service).canaries["passed"] == 1, "it has passed")
        await until(lambda: calls == [False], "it was called as it attached")
        entry = listener_of(service).roster.by_device[made.device_id]
        await looker._look(entry, 0)
        assert counted(service).canaries["passed"] == 2
        assert calls == [False], "a later round has no call before it"
        await looker._look_where_else(entry, 0)
        assert calls == [False, True]
        assert counted(service).canaries["passed"] == 2, "a later call has no round behind it"
        rounds = [due for due, _, _, _, look in looker._agenda._due if look == looker._look]
        others = [due for due, _, _, _, look in looker._agenda._due if look != looker._look]
        assert not set(rounds) & set(others)
        await device.kill()


def test_each_half_of_the_pages_has_some_with_and_some_without_tls() -> None:
    pages = tuple(
        page_of(f"{scheme}://{number}.example.com/")
        for scheme in ("http", "https")
        for number in range(3)
    )
    first, later = halves(pages)
    assert sorted(page.url for page in first + later) == sorted(page.url for page in pages)
    assert {page.is_tls for page in first} == {page.is_tls for page in later} == {True, False}
    assert halves(pages[:5]) == (pages[:5], pages[:5])


@pytest.mark.parametrize("outcome", [DialOutcome.REFUSED, DialOutcome.FAILED, DialOutcome.PAUSED])
async def test_an_exit_that_does_not_connect_has_not_lied(
    tmp_path: Path, pages: Pages, outcome: DialOutcome
) -> None:
    async with looking(tmp_path, pages) as service:
        made = await consented(service)
        device = await attached(service, made, answering(outcome))
        await until(lambda: counted(service).canaries["unknown"] == 1, "nothing is proven")
        assert not counted(service).canary_failures
        assert not listener_of(service).roster.by_device[made.device_id].is_proven
        await device.kill()


async def test_a_resting_exit_is_checked_when_it_carries_again(
    tmp_path: Path, pages: Pages
) -> None:
    async with looking(tmp_path, pages, again_seconds=0.05) as service:
        looks = service.daemon.exit_port.canaries
        await until(lambda: len(looks._truths) == 3, "the truth is known")
        made = await consented(service)
        resting = Consented(made.owner, made.device_id, made.first._replace(paused="on battery"))
        device = await attached(service, resting, carry)
        before = looks._agenda._number
        await until(lambda: looks._agenda._number > before, "it is put off")
        assert device.dials == []
        device.send(paused(""))
        await until(lambda: counted(service).canaries["passed"] == 1, "it has passed")
        await device.kill()


async def test_an_exit_that_is_paused_in_a_round_is_checked_again(
    tmp_path: Path, pages: Pages
) -> None:
    async with looking(tmp_path, pages, again_seconds=0.05) as service:
        made = await consented(service)
        device = await attached(service, made, swallow)
        await until(lambda: bool(device.dials), "it is looked at")
        entry = listener_of(service).roster.by_device[made.device_id]
        await until(lambda: bool(entry.relays), "a page is fetched")
        owner = {"token_id": made.device_id}
        path = "/api/worker/exit/pause"
        assert (await service.call("POST", path, owner, token=made.owner.token)).status == 200
        await until(lambda: not entry.relays, "that is cut")
        device.obey = carry
        path = "/api/worker/exit/resume"
        assert (await service.call("POST", path, owner, token=made.owner.token)).status == 200
        await until(lambda: counted(service).canaries["passed"] == 1, "it has passed")
        await device.kill()


async def test_those_that_are_gone_are_not_kept(tmp_path: Path, pages: Pages) -> None:
    async with looking(tmp_path, pages) as service:
        looks = service.daemon.exit_port.canaries
        made = await consented(service)
        device = await attached(service, made, carry)
        entry = listener_of(service).roster.by_device[made.device_id]
        await until(lambda: counted(service).canaries["passed"] == 1, "it has passed")
        await device.kill()
        await until(lambda: entry.is_gone, "it is gone")
        for _ in range(SWEEP_LEAST):
            looks._schedule(entry, 1e12, 0)
        assert len(looks._agenda._due) <= 2


async def test_a_page_that_has_changed_meanwhile_is_no_lie(tmp_path: Path, pages: Pages) -> None:
    async with looking(tmp_path, pages) as service:
        looks = service.daemon.exit_port.canaries
        await until(lambda: len(looks._truths) == 3, "the truth is known")
        pages.body = b"something new"
        made = await consented(service)
        device = await attached(service, made, carry)
        await until(lambda: counted(service).canaries["unknown"] == 1, "nothing is proven")
        assert not counted(service).canary_failures
        await device.kill()


async def test_a_page_that_differs_from_itself_is_no_canary(
    tmp_path: Path, pages: Pages, caplog: Any
) -> None:
    pages.varies = True
    async with looking(tmp_path, pages) as service:
        made = await consented(service)
        device = await attached(service, made, saying(answer(EVIL)))
        await until(lambda: counted(service).canaries["unknown"] == 1, "nothing is proven")
        assert (
            listener_of(service).roster.by_device[made.device_id].is_proven
        )  # the device stays admitted
        assert "differs from one fetch to the next" in caplog.text
        assert "no canary can be fetched" in caplog.text
        assert device.dials == []
        await device.kill()


async def test_the_bytes_that_it_carried_before_are_unpaid(tmp_path: Path, pages: Pages) -> None:
    async with looking(tmp_path, pages) as service:
        service.wishes = "-country-xx"
        person, bought = await buy(service)
        made = await consented(service)
        device = await attached(service, made, carry)
        await until(lambda: counted(service).canaries["passed"] == 1, "it has passed")
        client = await Client.open(service.proxy_port)
        assert await client.log_in(bought.username, bought.password) == 0
        assert await client.connect("127.0.0.1", pages.http) == 0
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        assert b"the same for everybody" in await client.rest()
        await client.close()

        async def is_counted() -> bool:
            return await used(service, person, bought) > 0

        await until(is_counted, "it is written down")
        # The next round: it has begun to lie.
        device.obey = saying(answer(EVIL))
        looks = service.daemon.exit_port.canaries
        entry = listener_of(service).roster.by_device[made.device_id]
        looks._proven.clear()
        looks._schedule(entry, 0.0, 0)
        await is_barred(service, made.device_id)
        await service.end(person, bought)
        mine = await service.call("GET", "/api/exits/me", token=made.owner.token)
        assert mine.body["exits"][0]["pending_usd"] == 0
        assert await service.balance(person) == 10
        await device.kill()


async def test_a_verdict_is_written_down_when_the_store_is_back(
    tmp_path: Path, pages: Pages
) -> None:
    async with looking(tmp_path, pages, write_again_seconds=0.05) as service:
        looks = service.daemon.exit_port.canaries
        judge, failures = looks._bars._judge, [UnavailableError("away"), UnavailableError("away")]

        class Failing:
            words = staticmethod(judge.words)

            async def bar(self, device_id: str, kind: str, evidence: str) -> None:
                if failures:
                    raise failures.pop()
                await judge.bar(device_id, kind, evidence)

        looks._bars._judge = Failing()
        made = await consented(service)
        device = await attached(service, made, saying(b"junk"))
        await is_barred(service, made.device_id)
        assert not failures
        await device.kill()


async def test_a_pardoned_exit_may_attach_again(tmp_path: Path, pages: Pages) -> None:
    async with looking(tmp_path, pages) as service:
        made = await consented(service)
        device = await attached(service, made, saying(b"junk"))
        await is_barred(service, made.device_id)
        context = service.daemon.market.context
        assert [each.device_id for each in await exit_canaries.barred(context)] == [made.device_id]
        await exit_canaries.pardon(context, made.device_id)
        again = await attached(service, made, carry)
        assert again.sorry is None
        await until(lambda: counted(service).canaries["passed"] == 1, "it has passed")
        await device.kill()
        await again.kill()


async def test_without_canaries_no_exit_is_checked(tmp_path: Path, pages: Pages) -> None:
    async with looking(tmp_path, pages, []) as service:
        made = await consented(service)
        device = await attached(service, made, carry)
        await until(lambda: bool(device.parked), "a connection waits")
        assert listener_of(service).roster.by_device[made.device_id].is_proven
        device.send(Dialled(next(iter(device.parked)), DialOutcome.CONNECTED, 0, None, 0))
        entry = listener_of(service).roster.by_device[made.device_id]
        heard = entry.pulse.heard_at
        await until(lambda: entry.pulse.heard_at > heard, "it is heard")
        assert device.dials == []
        assert pages.asked == 0
        await device.kill()


async def test_a_round_that_ends_with_the_verdict_leaves_no_proof(
    tmp_path: Path, pages: Pages
) -> None:
    """The exit would otherwise carry all ports again without a first round, once pardoned."""
    async with looking(tmp_path, pages) as service:
        made = await consented(service)
        await attached(service, made, carry)
        await until(lambda: counted(service).canaries["passed"] == 1, "it has passed")
        entry = listener_of(service).roster.by_device[made.device_id]
        looks = service.daemon.exit_port.canaries
        looks.suspect(entry, "junk", "the test says so")
        looks._pass(entry)
        await is_barred(service, made.device_id)
        assert made.device_id not in looks._proven
