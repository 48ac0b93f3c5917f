"""Figures that are live: they follow the events, show when they do not, and come back."""

import asyncio
import signal
from pathlib import Path

import pytest
from support.base.ports import free_port
from support.clients.socks import Client
from support.clients.story import reached, used, worker_token
from support.console.browser import Tab, Visit
from support.console.console import log_in, opened
from support.daemons import process
from support.daemons.service import Service
from support.targets.targets import echo

USED = "Number(document.querySelector('[data-session=\"%s\"]')?.dataset.used)"
LIVE = "document.documentElement.dataset.live === 'live'"
LOST = "document.documentElement.dataset.live === 'lost'"


async def exchange(client: Client, size: int) -> None:
    """Send bytes to an echo and read them back."""
    await client.send(b"x" * size)
    await client.receive(size)


@pytest.mark.long
async def test_the_bytes_of_a_session_move_on_the_page(service: Service, visit: Visit) -> None:
    person = await service.person(usd="10")
    bought = await service.buy(person)
    tab = await opened(visit, service, person, "/console")
    shown = USED % bought.id
    await tab.until(f"{LIVE} && {shown} === 0")
    async with echo() as target:
        client = await reached(service, bought, target)
        for size in (1_000, 250_000):
            await exchange(client, size)
            await tab.until(f"{shown} === {target.received + target.sent}")
            assert await used(service, person, bought) == target.received + target.sent
        await client.close()
    assert sum(sent.path == "/api/bandwidth/sessions" for sent in visit.requests) <= 4, "no polling"


async def test_an_event_is_shown_at_once(service: Service, visit: Visit) -> None:
    person = await service.person(usd="10")
    tab = await opened(visit, service, person, "/console")
    await tab.until(LIVE)
    await tab.until_text("No session is active")
    bought = await service.buy(person)
    await tab.until_text("was bought: 1 GB for $1.00", ".overview-events")
    await tab.until(f"{USED % bought.id} === 0")
    await service.end(person, bought)
    await tab.until_text("was ended: 0 bytes for $0.00", ".overview-events")
    await tab.until_text("No session is active")


GATED = """
{
const asked = (window.ungated ??= window.fetch);
window.isAsked = false;
const gate = new Promise((resolve) => { window.release = resolve; });
window.fetch = async (path, ...rest) => {
  const answer = await asked(path, ...rest);
  if (String(path).startsWith("/api/bandwidth/sessions")) {
    window.isAsked = true;
    await gate;
  }
  return answer;
};
}
"""


@pytest.mark.long
async def test_an_event_while_a_page_is_made_is_on_it(service: Service, visit: Visit) -> None:
    person = await service.person(usd="10")
    tab = await opened(visit, service, person, "/console/wallet")
    await tab.until(LIVE)
    pages = (("/console/sessions", "Sessions", "$9.00"), ("/console", "Overview", "$8.00"))
    for path, menu, left in pages:
        await tab.run(GATED)
        await tab.click(menu)
        await tab.until(f"location.pathname === '{path}'")
        await tab.until("window.isAsked")
        bought = await service.buy(person)
        await tab.until_text(left, "#balance")
        await tab.run("window.release()")
        shown = f"[data-row='{bought.id}'], [data-session='{bought.id}']"
        await tab.until(f'document.querySelector("{shown}") !== null')


@pytest.mark.long
async def test_shown_parts_stay_while_the_server_is_away(service: Service, visit: Visit) -> None:
    person = await service.person(usd="10")
    first = await service.buy(person)
    tab = await opened(visit, service, person, "/console")
    await tab.until(f"{LIVE} && {USED % first.id} === 0")
    await tab.settled()
    await tab.run("window.fetch = () => Promise.reject(new TypeError('away')); 0")
    await service.buy(person)  # the stream that is open still tells of it
    await tab.until("document.querySelectorAll('.overview-events li').length === 3")
    await tab.until("document.querySelector('#state p') !== null")
    assert await tab.run(f"{USED % first.id} === 0")
    assert await tab.run("document.querySelector('.overview .failed') === null")


@pytest.mark.long
async def test_steps_are_ticked_and_warnings_come(service: Service, visit: Visit) -> None:
    person = await service.person()
    tab = await opened(visit, service, person, "/console")
    await tab.until("document.querySelectorAll('[data-step][data-done=false]').length === 3")
    await service.fund(person.email, "1.5")
    bought = await service.buy(person, quota=10**9)
    await tab.until("document.querySelectorAll('[data-step][data-done=true]').length === 2")
    await tab.until("document.querySelector('[data-warning=low]') !== null")
    async with echo() as target:
        client = await reached(service, bought, target)
        await exchange(client, 1_000)
        await client.close()
    # All steps are done; a service without a mail server has no step for an e-mail.
    await tab.until("document.querySelector('[data-step]') === null")
    await service.call("POST", "/api/bandwidth/end", {"session_id": bought.id}, token=person.token)
    await tab.until("document.querySelector('[data-warning]') === null")
    await worker_token(service, person, "rig")
    await tab.goto(f"{service.url}/console")
    await tab.until_text("rig", ".table")


async def gone(tab: Tab, running: process.Process, number: int) -> None:
    """Stop a daemon, and see it in the page."""
    await tab.run("window.stayed = true")
    await asyncio.to_thread(running.stop, number)
    await tab.until(LOST)
    await tab.until("/^Not live, /.test(document.querySelector('#live').textContent)")
    colour = "getComputedStyle(document.querySelector('[data-session] .is-live')).fontStyle"
    assert await tab.run(colour) == "italic"


async def test_the_daemon_is_killed_and_comes_back(visit: Visit, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    email, password = await asyncio.to_thread(process.funded, url)

    async def started(port: str) -> process.Process:
        begun = process.Process(url, PROXYD_API__PORT=port)
        return await asyncio.to_thread(begun.wait_ready)

    port = str(free_port())  # the same one for each of the daemons
    running = await started(port)
    try:
        token = await asyncio.to_thread(running.log_in, email, password)
        first = (await asyncio.to_thread(running.buy, token))["session_id"]
        tab = await visit.open(f"{running.api}/login")
        await log_in(tab, email, password)
        await tab.goto(f"{running.api}/console")
        await tab.until(f"{LIVE} && {USED % first} === 0")
        for number in (signal.SIGKILL, signal.SIGTERM):
            await gone(tab, running, number)
            running = await started(port)
            second = (await asyncio.to_thread(running.buy, token))["session_id"]
            await tab.until(f"{LIVE} && {USED % second} === 0")
            assert await tab.run("window.stayed"), "without a reload"
    finally:
        await asyncio.to_thread(running.stop, signal.SIGKILL)
