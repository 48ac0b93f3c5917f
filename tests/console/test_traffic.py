"""The pages of sessions, usage and the wallet: they show the API's data, and work."""

import asyncio
import subprocess
from typing import Any

import pytest
from support.base.waiting import until
from support.clients.buyer import client_environment, program
from support.clients.story import reached, used
from support.console.browser import Tab, Visit
from support.console.console import opened
from support.daemons.service import Service
from support.market.staff import ROOT
from support.targets.targets import echo
from support.targets.threads import web

from market.bandwidth.sessions import Bandwidth, Session
from market.bandwidth.usage import Series, UsageHistory
from market.staff.stopping import stopping

NOBODYS = "01998f00-0000-7000-8000-00000000000a"
USED = "Number(document.querySelector('[data-session]')?.dataset.used)"
LIVE = "document.documentElement.dataset.live === 'live'"
COST = "document.querySelector('[data-cost]').textContent"
LINE = "document.querySelector('[data-line=\"%s\"] code').textContent"
SECONDS_MAX = 30
# Notes in a page the byte counts of the stream: the browser's other tabs get its frames as well.
HEARING = """
window.heard = [];
window.channel = new BroadcastChannel("proxyd.stream");
channel.onmessage = ({ data }) => heard.push(data.frame?.data?.bytes_used);
"""


async def shell(line: str) -> bytes:
    """Run a line as a reader of the page does, and return its output."""
    program("curl")

    def ran() -> bytes:
        return subprocess.run(
            ["bash", "-c", line],
            env=client_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS_MAX,
            check=True,
        ).stdout

    return await asyncio.to_thread(ran)


async def bought_by_page(tab: Tab, service: Service) -> str:
    """Buy 0.5 GB for 0.7 USD a GB, and return the identifier of the session."""
    await tab.goto(f"{service.url}/console/sessions/new")
    await tab.until_text("In your wallet")
    await tab.fill("How many GB", "0.5")
    await tab.fill("Price per GB", "0.7")
    await tab.until(f"{COST} === '$0.35'")
    await tab.until_text("$9.65", ".bill")
    await tab.click("Buy")
    await tab.until_text("This is shown only once", "dialog")
    await tab.click("I have stored it")
    await tab.until(f"{USED} === 0")
    return str(await tab.run("location.pathname.split('/').at(-1)"))


async def test_a_line_of_the_page_works_and_its_bytes_are_seen(
    service: Service, visit: Visit
) -> None:
    person = await service.person(usd="10")
    tab = await opened(visit, service, person, "/console/sessions")
    await tab.until_text("No session is in this list")
    session_id = await bought_by_page(tab, service)
    with web() as target:
        url = f"http://127.0.0.1:{target.port}/bytes/250000"
        await tab.fill("Address to fetch", url)
        await tab.until(f"{LIVE} && {LINE % 'curl'}.includes({url!r})")
        assert len(await shell(f"{await tab.run(LINE % 'curl')} --silent")) == 250_000
        # `NO_PROXY` makes programs reach their own machine directly; here the target is there.
        variables = await tab.run(LINE % "env")
        assert len(await shell(f"{variables}\nunset NO_PROXY\ncurl --silent {url}")) == 250_000
        moved = target.received + target.sent
    await tab.until(f"{USED} === {moved}")
    (session,) = await service.sessions(person)
    assert (session["id"], session["bytes_used"]) == (session_id, moved)
    for name in ("requests", "httpx"):
        compile(await tab.run(LINE % name), name, "exec")


async def test_a_session_is_seen_halted_and_ended_after_its_price_was_shown(
    service: Service, visit: Visit
) -> None:
    person = await service.person(usd="10")
    bought = await service.buy(person, quota=10**6, price=1_000)
    async with echo() as target:
        client = await reached(service, bought, target)
        await client.send(b"x" * 50_000)
        await client.receive(50_000)
        await client.close()
    tab = await opened(visit, service, person, f"/console/sessions/{bought.id}")
    await tab.until(f"{USED} === 100000")
    assert "PASSWORD" in await tab.run(LINE % "curl")
    await tab.until_text("$1.00 held = $0.10 to pay if it ended now + $0.90 that would come back")
    context = service.daemon.market.context
    await stopping.halt_session(context, ROOT, bought.id, "ticket A-17")
    await tab.until_text("The service decides when it goes on")
    assert "Halted" in await tab.text("main")
    assert "A-17" not in await tab.text("main")  # the reason of the staff is for the staff
    await stopping.let_session_go(context, ROOT, bought.id, "resolved")
    await tab.until('!document.body.innerText.includes("decides when it goes on")')
    await tab.click("End the session")
    await tab.until_text("$0.10 will be paid, and $0.90 will be released", "dialog")
    await tab.click("Cancel")
    assert (await service.session(person, bought))["status"] == "active"
    await tab.click("End the session")
    await tab.until_text("Its connections are cut immediately", "dialog")
    await tab.click("End the session")
    await tab.until_text("$1.00 held = $0.10 paid + $0.90 released")
    session = await service.session(person, bought)
    assert (session["status"], session["paid"]) == ("ended", 0.1)
    await tab.goto(f"{service.url}/console/wallet")
    await tab.until("document.querySelector('[data-usd]')?.dataset.usd === '9.9'")
    await tab.until_text("$9.90 in all = $9.90 available + $0.00 held")
    await tab.until(f"document.querySelector('.table a[href$=\"{bought.id}\"]') !== null")


async def test_one_short_connection_is_counted_on_the_open_page(
    service: Service, visit: Visit
) -> None:
    person = await service.person(usd="10")
    bought = await service.buy(person, quota=10**6, price=1_000)
    tab = await opened(visit, service, person, f"/console/sessions/{bought.id}")
    await tab.until(LIVE)
    async with echo() as target:
        client = await reached(service, bought, target)
        await client.send(b"x" * 5_000)
        await client.receive(5_000)
        await client.close()
    await tab.until(f"{USED} === 10000")
    await tab.until_text("Connections\n1\n", "main")


@pytest.mark.long
async def test_bytes_that_move_while_the_page_is_on_its_way_are_counted_on_it(
    service: Service, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = await service.person(usd="10")
    bought = await service.buy(person, quota=10**6, price=1_000)
    asked, told = 0, asyncio.Event()
    series = UsageHistory.series

    async def slow(history: UsageHistory, *args: Any, **named: Any) -> Series:
        nonlocal asked
        found = await series(history, *args, **named)
        asked += 1
        if asked == 1:
            await told.wait()
        return found

    monkeypatch.setattr(UsageHistory, "series", slow)
    tab = await opened(visit, service, person, f"/console/sessions/{bought.id}")
    await until(lambda: asked == 1, "the page has asked before anything moves")
    async with echo() as target:
        client = await reached(service, bought, target)
        await client.send(b"x" * 5_000)
        await client.receive(5_000)
        await client.close()
    await until(lambda: asked > 1, "the stream says that something has moved, and it asks again")
    told.set()
    await tab.until(f"{USED} === 10000")
    await tab.until_text("Connections\n1\n", "main")


async def test_a_missing_session_leads_onward(service: Service, visit: Visit) -> None:
    tab = await opened(visit, service, await service.person(), f"/console/sessions/{NOBODYS}")
    await tab.until_text("To the overview", ".failed")
    assert "Try again" not in await tab.text(".failed")


@pytest.mark.long
async def test_the_list_of_sessions_follows(service: Service, visit: Visit) -> None:
    person = await service.person(usd="10")
    first, second = [await service.buy(person) for _ in range(2)]
    await service.end(person, second)
    tab = await opened(visit, service, person, "/console/sessions")
    await tab.until(f"{LIVE} && document.querySelectorAll('tbody tr').length === 1")
    row = f"Number(document.querySelector('[data-row=\"{first.id}\"]')?.dataset.used)"
    async with echo() as target:
        client = await reached(service, first, target)
        for expected in (140_000, 280_000, 420_000):  # no further request for the list
            await client.send(b"x" * 70_000)
            await client.receive(70_000)
            await tab.until(f"{row} === {expected}")
        await client.close()
    await tab.fill("Status", "All")
    await tab.until("document.querySelectorAll('tbody tr').length === 2")


@pytest.mark.long
async def test_bytes_that_move_while_the_list_is_on_its_way_are_shown(
    service: Service, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = await service.person(usd="10")
    bought = await service.buy(person)
    asked, told = 0, asyncio.Event()
    page = Bandwidth.page

    async def slow(bandwidth: Bandwidth, *args: Any, **named: Any) -> list[Session]:
        nonlocal asked
        found = await page(bandwidth, *args, **named)
        asked += 1
        await told.wait()
        return found

    monkeypatch.setattr(Bandwidth, "page", slow)
    tab = await opened(visit, service, person, "/console/sessions")
    await tab.until(LIVE)
    await tab.run(HEARING)
    await until(lambda: asked > 0, "the page has asked before anything moves")
    async with echo() as target:
        client = await reached(service, bought, target)
        await client.send(b"x" * 5_000)
        await client.receive(5_000)
        await client.close()
    await tab.until("heard.includes(10000)")
    told.set()
    await tab.until(
        f"Number(document.querySelector('[data-row=\"{bought.id}\"]')?.dataset.used) === 10000"
    )


@pytest.mark.long
async def test_the_shown_use_is_the_use_in_the_api(service: Service, visit: Visit) -> None:
    person = await service.person(usd="10")
    sessions = [await service.buy(person) for _ in range(2)]
    tab = await opened(visit, service, person, "/console/usage?range=live")
    total = "Number(document.querySelector('[data-total]')?.dataset.total)"
    await tab.until(f"{LIVE} && {total} === 0")
    async with echo() as target:
        for bought, size in zip(sessions, (30_000, 10_000), strict=True):
            client = await reached(service, bought, target)
            await client.send(b"x" * size)
            await client.receive(size)
            await client.close()
            assert await used(service, person, bought) == 2 * size
    await tab.until(f"{total} === 80000")
    for name in ("today", "7d", "30d"):
        await tab.goto(f"{service.url}/console/usage?range={name}")
        await tab.until(f"{total} === 80000")
        assert await tab.run("document.querySelectorAll('.chart rect.series-0').length") > 0
        assert await tab.run("document.querySelectorAll('.chart rect.series-1').length") > 0
        await tab.click("As a table")
        await tab.until(f"{IN_TABLE % 'total'} === 80")
        await tab.until(f"{IN_TABLE % sessions[0].id} === 60")


SUMMARY = ".chart-table summary"
OPEN = "document.querySelector('.chart-table').open"
# The nodes of the table, of its summary and of a link in the list.
KEEP = """
window.kept = [".chart-table", ".chart-table summary", "td a"].map((each) =>
  document.querySelector(each));
"""
# The sum of a column, however many of its steps or hours the use falls into.
IN_TABLE = """
[...document.querySelectorAll('.chart-table [data-key="%s"]')]
  .map((each) => each.textContent).filter((each) => each.endsWith(" kB"))
  .reduce((sum, each) => sum + parseInt(each, 10), 0)
"""
KEPT = "window.kept.every((each) => each === null || each.isConnected)"


@pytest.mark.long
@pytest.mark.parametrize("shown", ["live", "today"])
async def test_a_table_that_is_open_stays_open_over_live_figures(
    service: Service, visit: Visit, shown: str
) -> None:
    person = await service.person(usd="10")
    bought = await service.buy(person)
    tab = await opened(visit, service, person, f"/console/usage?range={shown}")
    total = "Number(document.querySelector('[data-total]')?.dataset.total)"
    await tab.until(f"{LIVE} && {total} === 0")
    async with echo() as target:
        client = await reached(service, bought, target)
        for turn in (1, 2, 3):
            if turn == 2:  # the first figures have made the list of sessions
                await tab.run(KEEP)
                await tab.run(f"document.querySelector('{SUMMARY}').focus()")
                # The figures change while the button of the mouse is down.
                await tab.hold(SUMMARY)
            await client.send(b"x" * 30_000)
            await client.receive(30_000)
            await tab.until(f"{total} === {turn * 60_000}")
            if turn == 2:
                await tab.release(SUMMARY)
                await tab.until(OPEN)
        await client.close()
    await tab.until(f"{IN_TABLE % 'total'} === 180")
    assert await tab.run(OPEN)
    assert await tab.run(KEPT)
    assert await tab.focused() == "As a table"


async def test_money_that_comes_while_one_buys_is_counted(service: Service, visit: Visit) -> None:
    person = await service.person(usd="0.5")
    tab = await opened(visit, service, person, "/console/sessions/new")
    await tab.until_text("$0.50 is missing in your wallet", ".bill")
    await tab.until(LIVE)
    await service.fund(person.email, "10")
    await tab.until_text("$10.50", ".bill")
    assert "missing" not in await tab.text(".bill")
    # With too little there is nothing to press, and one message with a way on.
    submit = "document.querySelector('main form [type=submit]').disabled"
    await tab.until(f"{submit} === false")
    await tab.fill("main form [name=gb]", "20")
    await tab.until(submit)
    await tab.until("document.querySelector('main').innerText.split('missing').length === 2")
    await tab.click("To the wallet")
    await tab.until("location.pathname === '/console/wallet'")
    await tab.until_text("Deposit", "table")


@pytest.mark.long
async def test_a_list_says_how_long_it_is_and_keeps_its_place(
    service: Service, visit: Visit
) -> None:
    person = await service.person(usd="60")
    bought = [await service.buy(person) for _ in range(52)]
    newest = bought[-1].id
    tab = await opened(visit, service, person, "/console")
    name = f"Session {newest[-8:]}"
    await tab.until_text("20 of 52", "main")
    await tab.until_text(name, ".overview-sessions")
    await tab.until_text(f"{name} was bought", ".overview-events")
    await tab.click("All sessions (52)")
    await tab.until_text("25 of 52", "main")
    await tab.click("Load more")
    await tab.until_text("50 of 52", "main")
    # A selection stays while the list changes.
    await tab.run("getSelection().selectAllChildren(document.querySelector('tbody tr td a'))")
    await service.end(person, bought[0])
    await tab.until_text("50 of 51", "main")
    assert await tab.run("String(getSelection())") == name
    link = f"document.querySelector('[data-row=\"{bought[10].id}\"] a')"
    await tab.run(f"{link}.scrollIntoView(); window.before = scrollY; {link}.click()")
    await tab.until_text(f"Session {bought[10].id[-8:]}", "h1")
    await tab.run("history.back()")
    await tab.until_text("50 of 51", "main")
    await tab.until("before > 1000 && scrollY === before")
    await tab.goto(f"{service.url}/console/wallet")
    await tab.until_text(name, "table")


LOST = """
const asked = window.fetch;
let isLost = false;
window.fetch = async (path, ...rest) => {
  const answer = await asked(path, ...rest);
  if (path !== "/api/bandwidth/create" || isLost) return answer;
  isLost = true;
  throw new TypeError("the answer did not come");
};
document.querySelector("main form .primary").click();
document.querySelector("main form .primary").click();
document.querySelector("main form").requestSubmit();
"""


async def test_a_purchase_whose_answer_is_lost_is_one(service: Service, visit: Visit) -> None:
    person = await service.person(usd="10")
    tab = await opened(visit, service, person, "/console/sessions/new")
    await tab.until_text("$9.00", ".bill")
    await tab.run(LOST)
    await tab.click("I have stored it")
    await tab.until(f"{USED} === 0")
    assert len(await service.sessions(person)) == 1


async def test_a_range_that_ends_before_it_begins_is_refused_beside_its_field(
    service: Service, visit: Visit
) -> None:
    person = await service.person()
    tab = await opened(visit, service, person, "/console/usage?range=custom&from=no&to=day")
    await tab.fill("First day", "2026-03-02")
    await tab.fill("Last day", "2026-03-01")
    await tab.click("Show")
    await tab.until_text("choose a later one", "[name=to] ~ .problem")
    assert await tab.focused() == "Last day"
