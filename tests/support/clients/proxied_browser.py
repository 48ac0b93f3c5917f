"""A Chromium without windows, driven by the DevTools protocol; credentials are given when asked."""

import asyncio
import itertools
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from support.base.waiting import until
from support.clients.buyer import client_environment, program

START_SECONDS = 60
CALL_SECONDS = 60
STOP_SECONDS = 15

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # without it there is no running as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-pings",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-sync",
    "--disable-features=OptimizationHints,MediaRouter,NetworkTimeServiceQuerying",
    "--ignore-certificate-errors",
    "--remote-debugging-port=0",
    "--proxy-bypass-list=<-loopback>",
)


@dataclass
class Page:
    """A page after loading: its title, its text, and `error` when it could not be loaded."""

    error: str
    title: str
    text: str


@dataclass
class Browser:
    """A running browser with one page open.

    It answers the first challenge of each request with `credentials`, and cancels a second one;
    `challenges` counts the challenges by their source.
    """

    socket: aiohttp.ClientWebSocketResponse
    credentials: tuple[str, str]
    session: str = ""
    challenges: Counter[str] = field(default_factory=Counter)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _waiting: dict[int, "asyncio.Future[dict[str, Any]]"] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)
    _loaded: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self, url: str) -> Page:
        """Load a page, and wait until it or a page about its failure is there."""
        self._loaded.clear()
        answer = await self.call("Page.navigate", url=url)
        async with asyncio.timeout(CALL_SECONDS):
            await self._loaded.wait()
        title = await self.evaluate("document.title")
        text = await self.evaluate("document.body.innerText")
        return Page(answer.get("errorText", ""), title, text)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a piece of JavaScript in the page."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser for something, and return its answer."""
        number = await self._send(method, parameters)
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await answered
        finally:
            del self._waiting[number]

    async def attach(self) -> None:
        """Open an empty page whose requests for credentials are answered here."""
        made = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        self.session = attached["sessionId"]
        await self.call("Page.enable")
        await self.call("Fetch.enable", handleAuthRequests=True)

    async def listen(self) -> None:
        """Read messages of the browser until it has ended."""
        async for message in self.socket:
            heard = json.loads(message.data)
            if "id" in heard:
                self._answered(heard)
            else:
                await self._happened(heard["method"], heard["params"])

    def _answered(self, heard: dict[str, Any]) -> None:
        answered = self._waiting.get(heard["id"])
        if answered is None or answered.done():
            return
        if "error" in heard:
            answered.set_exception(AssertionError(heard["error"]))
        else:
            answered.set_result(heard["result"])

    async def _happened(self, event: str, told: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded.set()
        elif event == "Fetch.requestPaused":
            await self._send("Fetch.continueRequest", {"requestId": told["requestId"]})
        elif event == "Fetch.authRequired":
            self.challenges[told["authChallenge"]["source"]] += 1
            answer = {"response": "CancelAuth"}
            if told["requestId"] not in self._asked:
                self._asked.add(told["requestId"])
                username, password = self.credentials
                answer = {
                    "response": "ProvideCredentials",
                    "username": username,
                    "password": password,
                }
            await self._send(
                "Fetch.continueWithAuth",
                {"requestId": told["requestId"], "authChallengeResponse": answer},
            )

    async def _send(self, method: str, parameters: dict[str, Any]) -> int:
        number = next(self._numbers)
        asked = {"id": number, "method": method, "params": parameters}
        if self.session:
            asked["sessionId"] = self.session
        await self.socket.send_str(json.dumps(asked))
        return number


@asynccontextmanager
async def browsing(
    folder: Path, proxy: str, credentials: tuple[str, str]
) -> AsyncIterator[Browser]:
    """Run a browser on a fresh profile, with a proxy (HOST:PORT) for everything."""
    profile = folder / "profile"
    process = await asyncio.create_subprocess_exec(
        program("chromium"),
        *FLAGS,
        f"--user-data-dir={profile}",
        f"--proxy-server=http://{proxy}",
        env=client_environment(HOME=str(folder)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        address = await _debugger(profile / "DevToolsActivePort", process)
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(address, max_msg_size=0) as socket,
        ):
            browser = Browser(socket, credentials)
            listening = asyncio.create_task(browser.listen())
            try:
                await browser.attach()
                yield browser
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
    finally:
        await _stop(process)


async def _debugger(file: Path, process: asyncio.subprocess.Process) -> str:
    """Wait until the browser prints the address of its debugger."""

    def is_there() -> bool:
        assert process.returncode is None, f"chromium ended with {process.returncode}"
        return file.exists() and file.read_text().count("\n") > 0

    await until(is_there, "chromium listens", seconds=START_SECONDS)
    port, path = file.read_text().split()
    return f"ws://127.0.0.1:{port}{path}"


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End a browser, which ends its other processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            process.send_signal(number)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
                return
