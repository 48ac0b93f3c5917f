"""A real browser, driven by its DevTools protocol."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.waiting import until

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium: apt-get install chromium"
)


class Tab:
    """One page of a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._asked = 0

    async def run(self, script: str) -> Any:
        """Run a script in the page, as a person's console would, and return what it is worth."""
        self._asked += 1
        await self._socket.send_json(
            {
                "id": self._asked,
                "method": "Runtime.evaluate",
                "params": {"expression": script, "awaitPromise": True, "returnByValue": True},
            }
        )
        while (answer := await self._socket.receive_json()).get("id") != self._asked:
            pass
        assert "exceptionDetails" not in answer["result"], answer
        return answer["result"]["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until a script says yes."""
        await until(lambda: self.run(script), script)


@asynccontextmanager
async def browsing(url: str, http: aiohttp.ClientSession, folder: Path) -> AsyncIterator[Tab]:
    """Open a page in a browser of its own."""
    browser = await asyncio.create_subprocess_exec(
        str(CHROMIUM),
        *FLAGS,
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}/profile",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert browser.stderr is not None
        told = b""
        while (found := re.search(rb"ws://([\d.:]+)/", told)) is None:
            line = await browser.stderr.readline()
            assert line, told
            told += line
        reading = asyncio.create_task(browser.stderr.read())
        async with http.put(f"http://{found[1].decode()}/json/new?{url}") as answer:
            page = (await answer.json())["webSocketDebuggerUrl"]
        async with http.ws_connect(page) as socket:
            tab = Tab(socket)
            await tab.until("location.href !== 'about:blank' && document.readyState === 'complete'")
            yield tab
    finally:
        browser.terminate()
        await browser.wait()
    await reading
