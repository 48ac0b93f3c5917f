"""The stream's client, beside a server that a test controls: one connection for all tabs."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from support.base.waiting import until
from support.console.browser import Tab, Visit

from api.console import FOLDER

PAGE = """<!doctype html><html lang="en"><title>stream</title><h1>Stream</h1><p id="live"></p>
<script type="module" src="/page.js"></script>"""
SCRIPT = """
if (location.search === "?plain") Object.defineProperty(navigator, "locks", { value: undefined });
const { follow } = await import("/console/lib/stream.js");
const page = new AbortController();
Object.assign(window, { events: [], usage: [], states: [], refreshed: 0, page });
follow({
  signal: page.signal,
  types: ["job.completed"],
  onEvent(event) {
    window.events.push(event.id);
    if (event.data.title === "bad") throw new Error("a page's own mistake");
  },
  onUsage: (frame) => window.usage.push(frame.bytes_used),
  onState: (state) => window.states.push(state),
  refresh: async () => { window.refreshed += 1; },
});
window.isReady = true;
"""


class Server:
    """Streams that the test writes to."""

    def __init__(self) -> None:
        self.url = ""
        self.streams: list[asyncio.Queue[bytes | None]] = []
        self.resumed: list[str] = []
        self.open = 0
        self.refusal = 0

    async def page(self, request: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    async def script(self, request: web.Request) -> web.Response:
        return web.Response(text=SCRIPT, content_type="text/javascript")

    async def stream(self, request: web.Request) -> web.StreamResponse:
        self.resumed.append(request.headers.get("Last-Event-ID", ""))
        if self.refusal:
            error = {"code": "unauthorized", "message": "no"}
            return web.json_response({"ok": False, "error": error}, status=self.refusal)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        queue.put_nowait(b":\n\n")
        self.streams.append(queue)
        self.open += 1
        try:
            await response.prepare(request)
            while (block := await queue.get()) is not None:
                await response.write(block)
        finally:
            self.open -= 1
        return response

    def say(self, name: str, data: Any, number: str = "") -> None:
        """Write to the latest stream."""
        head = f"id: {number}\n" if number else ""
        text = f"event: {name}\n{head}data: {msgspec.json.encode(data).decode()}\n\n"
        self.streams[-1].put_nowait(text.encode())

    def happen(self, number: str, kind: str = "job.completed", title: str = "good") -> None:
        """Write an event to the latest stream."""
        data = {"id": number, "type": kind, "subject_id": "1", "data": {"title": title}}
        self.say(kind, data, number)

    def cut(self) -> None:
        """End the latest stream."""
        self.streams[-1].put_nowait(None)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    served = Server()
    app = web.Application()
    app.router.add_get("/", served.page)
    app.router.add_get("/page.js", served.script)
    app.router.add_get("/api/events/stream", served.stream)
    app.router.add_static("/console", Path(FOLDER))
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.url = site.name.rstrip("/") + "/"
    yield served
    await runner.cleanup()


async def followed(visit: Visit, server: Server, query: str = "") -> Tab:
    tab = await visit.open(server.url + query)
    await tab.until("window.isReady && window.states.at(-1) === 'live'")
    return tab


async def test_two_tabs_share_one_connection(visit: Visit, server: Server) -> None:
    first = await followed(visit, server)
    second = await followed(visit, server)
    server.happen("a")
    server.happen("b", kind="session.created")  # of no interest here
    server.say("usage", {"session_id": "1", "bytes_used": 5})
    for tab in (first, second):
        await tab.until("window.usage.length === 1")
        assert await tab.run("[window.events, window.usage]") == [["a"], [5]]
    assert server.resumed == [""]
    await first.close()
    visit.tabs.remove(first)
    await until(lambda: len(server.streams) == 2, "the other tab takes over")
    assert server.resumed == ["", "b"], "from where the first one was"
    server.happen("a")  # a replay may repeat
    server.happen("c")
    await second.until("window.events.includes('c')")
    assert await second.run("window.events") == ["a", "c"]


@pytest.mark.long
async def test_a_reader_that_stops_following_leaves_the_stream(
    visit: Visit, server: Server
) -> None:
    tab = await followed(visit, server)
    await tab.run("window.page.abort()")
    await until(lambda: server.open == 0, "it has left")


@pytest.mark.parametrize("farewell", ["bye", "cut"])
async def test_it_comes_back_and_says_how_old_things_are(
    visit: Visit, server: Server, farewell: str
) -> None:
    tab = await followed(visit, server)
    server.happen("a")
    await tab.until("window.events.length === 1")
    refreshed = await tab.run("window.refreshed")
    server.refusal = 503
    if farewell == "bye":
        server.say("bye", {"reason": "draining"})
    else:
        server.cut()
    await tab.until("window.states.at(-1) === 'lost'")
    await tab.until("document.querySelector('#live').textContent === 'live.lost'")
    assert await tab.run("document.documentElement.dataset.live") == "lost"
    server.refusal = 0
    await tab.until("window.states.at(-1) === 'live'")
    assert server.resumed[-1] == "a"
    assert await tab.run("window.refreshed") == refreshed + 1
    assert await tab.run("document.documentElement.dataset.live") == "live"


@pytest.mark.long
async def test_without_locks_each_tab_reads_itself(visit: Visit, server: Server) -> None:
    await followed(visit, server, "?plain")
    await followed(visit, server, "?plain")
    assert server.open == 2


async def test_a_mistake_of_a_page_does_not_end_the_stream(visit: Visit, server: Server) -> None:
    visit.expect("a page's own mistake")
    tab = await followed(visit, server)
    server.happen("a", title="bad")
    server.happen("b")
    await tab.until("window.events.includes('b')")
    await until(lambda: bool(visit.complaints.told), "the mistake is reported")
    assert server.open == 1


async def test_a_login_that_is_over_is_not_asked_for_again(visit: Visit, server: Server) -> None:
    tab = await followed(visit, server)
    server.refusal = 401
    server.cut()
    await until(lambda: len(server.resumed) == 2, "it has tried")
    # The reading tab has the lock; no tab has it once none tries any more.
    await tab.until("navigator.locks.query().then(({ held }) => held.length === 0)")


async def test_a_user_that_logs_in_again_at_once_gets_the_stream(
    visit: Visit, server: Server
) -> None:
    tab = await followed(visit, server)
    server.refusal = 401
    server.cut()
    await until(lambda: len(server.resumed) == 2, "it has tried")
    await tab.until("navigator.locks.query().then(({ held }) => held.length === 0)")
    server.refusal = 0
    await tab.run(
        "window.page.abort();"
        "import('/console/lib/stream.js').then(({ follow }) => follow({"
        " signal: new AbortController().signal, onState: (state) => window.states.push(state) }))"
    )
    await tab.until("window.states.at(-1) === 'live'")
