"""A real browser, driven by its DevTools protocol as a person drives one.

`browsing` opens one page in a browser of its own. Tests of many pages share one process
(`chromium`) and have a context each (`visiting`): cookies, storage and cache of one are nothing to
another. A complaint of a page (an uncaught exception, an error on its console, a violation of its
policy, an asset that is not there) fails the test at its end, unless the test expected it.
"""

import asyncio
import base64
import contextlib
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest

from support.base.waiting import until, until_true

# A Chromium without windows needs half of the processor time: of the other one, each context has a
# window. `PROXYD_WINDOWS=1` takes that one. Debian's program on the path is a shell script, which
# passes no signal on.
_WITHOUT_WINDOWS = shutil.which(
    "chromium-headless-shell", path=f"/usr/lib/chromium:{os.environ['PATH']}"
)
HAS_WINDOWS = _WITHOUT_WINDOWS is None or os.environ.get("PROXYD_WINDOWS") == "1"
CHROMIUM = shutil.which("chromium") if HAS_WINDOWS else _WITHOUT_WINDOWS
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows",
    "--force-color-profile=srgb",
]
WIDTH, HEIGHT = 1280, 800
ASSETS = "/console/"
# A body may have no end or no reader.
ANSWERED = ("Network.responseReceived", "Network.loadingFinished", "Network.loadingFailed")
SETTLED_ROUNDS = 2  # requests that an answer causes are sent a moment later
MOST_PRESSES = 20  # of one click, on a page that moves
MESSAGE_BYTES = 64 << 20  # a screenshot comes in one message

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium: apt-get install chromium"
)

# The text of a label, without the value of the field within it.
SAYS = """
(function (label) {
  const copy = label.cloneNode(true);
  for (const each of copy.querySelectorAll("select, textarea, button")) each.remove();
  return copy.textContent.replace(/\\s+/g, " ").trim();
})
"""

# Finds an element that a person can press, by its text. In a dialog that is open nothing else can
# be reached.
FIND = """
(function (wanted, isField) {
  const plain = (text) => (text || "").replace(/\\s+/g, " ").trim();
  const says = SAYS;
  const seen = (each) => each && each.checkVisibility({ visibilityProperty: true });
  const dialogs = [...document.querySelectorAll("dialog[open]")];
  const root = dialogs.at(-1) || document;
  const pressed = "button, a, summary, label, [role=button], [role=tab], [role=menuitem]";
  const fields = "input, select, textarea";
  const named = (each) => [plain(each.textContent), plain(each.getAttribute("aria-label"))];
  if (isField) {
    const labels = [...root.querySelectorAll("label")];
    for (const same of [(a) => a === wanted, (a) => a.startsWith(wanted)]) {
      const label = labels.find((each) => same(says(each)) && seen(each.control));
      if (label) return label.control;
      const bare = [...root.querySelectorAll(fields)].find(
        (each) => same(plain(each.getAttribute("aria-label"))) && seen(each));
      if (bare) return bare;
    }
  } else {
    const found = [...root.querySelectorAll(pressed)].find(
      (each) => named(each).includes(wanted) && seen(each));
    if (found) return found;
  }
  try {
    return [...root.querySelectorAll(wanted)].find(seen) || null;
  } catch {
    return null;
  }
})
""".replace("SAYS", SAYS.strip())

# Where to press: the middle of it, once nothing lies over it and it is not disabled.
PLACE = """
(function (each) {
  if (!each || each.disabled || each.closest("[aria-busy=true]")) return null;
  each.scrollIntoView({ block: "center", inline: "nearest", behavior: "instant" });
  const box = each.getClientRects()[0];
  if (!box) return null;
  const x = box.x + box.width / 2, y = box.y + box.height / 2;
  const top = document.elementFromPoint(x, y);
  return top && (each.contains(top) || top.contains(each)) ? [x, y] : null;
})
"""

# Watches the next press: "hit" once a click has reached the element, "moved" if the press began
# beside it, "lost" if it began on it and no click followed there, "replaced" if the element was
# also taken off the page. The page gets no event of a press that begins beside the element: content
# that arrives meanwhile moves it, and another element would be pressed. The coordinates of an event
# are whole pixels, rounded down.
AIM = """
(function (each) {
  if (!each) return false;
  const kinds = ["pointerdown", "mousedown", "pointerup", "mouseup", "click"];
  const isIn = (box, x, y) =>
    box.left - 1 <= x && x <= box.right && box.top - 1 <= y && y <= box.bottom;
  const isOn = ({ target, clientX, clientY }) => each.isConnected
    && (each.contains(target) || target.contains(each))
    && [...each.getClientRects()].some((box) => isIn(box, clientX, clientY));
  const stop = () => kinds.forEach((kind) => removeEventListener(kind, watch, true));
  window.aim?.stop();
  const end = () => {
    stop();
    return aim.state === "lost" && !each.isConnected ? "replaced" : aim.state;
  };
  const aim = window.aim = { state: "waiting", stop, end };
  function watch(event) {
    if (aim.state === "waiting") aim.state = isOn(event) ? "lost" : "moved";
    if (aim.state === "moved") {
      event.preventDefault();
      event.stopImmediatePropagation();
    } else if (event.type === "click" && isOn(event)) {
      aim.state = "hit";
    }
  }
  kinds.forEach((kind) => addEventListener(kind, watch, true));
  return true;
})
"""

# The result of the press that was aimed; a page that was left for another one has had it.
AIMED = "window.aim ? window.aim.end() : 'hit'"

# Fields that are not written into by hand: the value is set, and the page gets the event.
CHOOSE = """
(function (each, value) {
  if (each.matches("select")) {
    const option = [...each.options].find(
      (option) => option.value === value || option.textContent.trim() === value);
    if (!option) return `no option ${value}`;
    each.value = option.value;
  } else {
    each.value = value;
  }
  each.dispatchEvent(new Event("input", { bubbles: true }));
  each.dispatchEvent(new Event("change", { bubbles: true }));
  return null;
})
"""

# By name of a key: code, virtual key and the text that it writes.
KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Escape": ("Escape", 27, ""),
    "Backspace": ("Backspace", 8, ""),
    "Delete": ("Delete", 46, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "Home": ("Home", 36, ""),
    "End": ("End", 35, ""),
    " ": ("Space", 32, " "),
}
MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}


class DevToolsError(Exception):
    """The browser refused a command, or the page that it was for has been left."""


class Wire:
    """Connection to a browser, read by one task; each tab is one of its sessions."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._heard: dict[str, Callable[[str, Any], None]] = {}

    def hear(self, session: str, handler: Callable[[str, Any], None]) -> None:
        """Pass the events of a session to a handler."""
        self._heard[session] = handler

    async def read(self) -> None:
        """Hand out messages until the connection ends; then every question fails."""
        try:
            async for message in self._socket:
                self._hand_out(msgspec.json.decode(message.data))
        finally:
            for waiting in self._asked.values():
                if not waiting.done():
                    waiting.set_exception(DevToolsError("the browser is gone"))

    def _hand_out(self, told: dict[str, Any]) -> None:
        if "id" not in told:
            handler = self._heard.get(told.get("sessionId", ""))
            if handler is not None:
                handler(told["method"], told["params"])
            return
        waiting = self._asked.pop(told["id"], None)
        if waiting is None or waiting.done():
            return
        if "error" in told:
            waiting.set_exception(DevToolsError(told["error"]["message"]))
        else:
            waiting.set_result(told["result"])

    async def ask(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Send a command and return its result."""
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json(message)
        return await answer


@dataclass(frozen=True)
class Sent:
    """A request that a page made."""

    method: str
    url: str
    kind: str  # DevTools' word: Document, Script, Stylesheet, Fetch

    @property
    def origin(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def path(self) -> str:
        return urlsplit(self.url).path


@dataclass
class Complaints:
    """Complaints of pages, and the patterns that a test expects."""

    told: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def unexpected(self) -> list[str]:
        return [
            each
            for each in self.told
            if not any(re.search(pattern, each) for pattern in self.expected)
        ]

    def hear(self, method: str, params: Any) -> None:
        """Take an event of DevTools; most are no complaint."""
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            what = details.get("exception", {}).get("description") or details["text"]
            self.told.append(f"exception: {what} at {details.get('url')}")
        elif method == "Runtime.consoleAPICalled":
            if params["type"] in ("error", "assert", "warning"):
                words = [str(each.get("value", each.get("description"))) for each in params["args"]]
                self.told.append(f"console.{params['type']}: {' '.join(words)}")
        elif method == "Log.entryAdded":
            self._hear_entry(params["entry"])
        elif method == "Audits.issueAdded":
            issue = params["issue"]
            if issue["code"] == "ContentSecurityPolicyIssue":
                self.told.append(f"policy: {issue['details']['contentSecurityPolicyIssueDetails']}")

    def _hear_entry(self, entry: Any) -> None:
        url = entry.get("url", "")
        # The browser notes every refusal of the API as an error of the network; refusals are the
        # page's to show. An asset that does not come is a fault.
        is_refusal = entry["source"] == "network" and not urlsplit(url).path.startswith(ASSETS)
        if entry["level"] == "error" and not is_refusal:
            self.told.append(f"{entry['source']}: {entry['text']} {url}")


class Tab:
    """One page of a browser."""

    def __init__(self, wire: Wire, session: str, complaints: Complaints) -> None:
        self._wire = wire
        self._session = session
        self._agent = ""
        self.complaints = complaints
        self.requests: list[Sent] = []
        self._under_way: set[str] = set()
        wire.hear(session, self._hear)

    def _hear(self, method: str, params: Any) -> None:
        if method == "Network.requestWillBeSent":
            request = params["request"]
            self.requests.append(Sent(request["method"], request["url"], params.get("type", "")))
            self._under_way.add(params["requestId"])
        elif method in ANSWERED:
            self._under_way.discard(params["requestId"])
        elif method == "Page.frameNavigated":
            self._under_way.clear()
        self.complaints.hear(method, params)

    async def ask(self, method: str, **params: Any) -> Any:
        """Send a DevTools command to the page."""
        return await self._wire.ask(method, self._session, **params)

    async def prepare(self) -> None:
        """Enable all events, and let the page believe that a person looks at it."""
        version = await self._wire.ask("Browser.getVersion")
        self._agent = version["userAgent"]
        for domain in ("Page", "Runtime", "Log", "Audits", "Network"):
            await self.ask(f"{domain}.enable")
        await self.ask("Emulation.setFocusEmulationEnabled", enabled=True)
        await self.emulate(width=WIDTH)

    async def goto(self, url: str) -> None:
        """Open an address, and wait until the document and its scripts are there."""
        before = await self.run("performance.timeOrigin")
        answer = await self.ask("Page.navigate", url=url)
        assert "errorText" not in answer, (url, answer["errorText"])
        has_new_document = "loaderId" in answer
        is_new = f"performance.timeOrigin !== {before}" if has_new_document else "true"
        await self.until(f"{is_new} && document.readyState === 'complete'")

    async def run(self, script: str) -> Any:
        """Run a script in the page, as a person's console would, and return its value."""
        answer = await self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until a script returns true, even if the tab loads another page meanwhile."""
        await self._waited(script, bool)

    async def value(self, script: str) -> Any:
        """Wait until a script is worth something, and return that.

        A page may be drawn anew at any moment: a wait and a look after it would see two pages.
        """
        return await self._waited(script, lambda result: result is not None)

    async def _waited(self, script: str, is_enough: Callable[[Any], bool]) -> Any:
        result: Any = None

        async def is_there() -> bool:
            nonlocal result
            try:
                result = await self.run(script)
            except DevToolsError as error:
                if "context" in str(error) or "navigated" in str(error):
                    return False
                raise
            return is_enough(result)

        try:
            await until(is_there, script)
        except AssertionError as error:
            raise AssertionError(f"{error}; {await self._condition()}") from None
        return result

    async def settled(self) -> None:
        """Wait until the page is drawn, and none of its requests is under way."""
        rounds = 0

        async def is_settled() -> bool:
            nonlocal rounds
            is_drawn = await self.run(
                "new Promise((drawn) => requestAnimationFrame(() => setTimeout(() => drawn("
                "!document.querySelector('.busy, [aria-busy=true]')))))"
            )
            rounds = rounds + 1 if is_drawn and not self._under_way else 0
            return rounds == SETTLED_ROUNDS

        await self.until("document.querySelector('h1') !== null")
        await until(is_settled, "the page is settled")

    async def until_text(self, text: str, selector: str = "body") -> None:
        """Wait until a text can be read in an element."""
        wanted, where = _literal(text), _literal(selector)
        await self.until(f"document.querySelector({where})?.innerText.includes({wanted})")

    async def _condition(self) -> str:
        seen = await self.run("location.href + '\\n' + document.body.innerText.slice(0, 2000)")
        return f"the page is {seen}; complaints: {self.complaints.told}"

    async def text(self, selector: str) -> str:
        """Return the visible text of an element, once it is there."""
        return str(await self.value(f"document.querySelector({_literal(selector)})?.innerText"))

    async def click(self, target: str) -> None:
        """Press, with the mouse, the element of this text or label in full, or a selector's first.

        Waits until it is there, enabled and under the pointer, and presses again where the page has
        moved it meanwhile.

        Raises:
            AssertionError: the page has replaced it between the press and the release, so that a
                person's click would be lost.
        """
        await self._press(f"{FIND}({_literal(target)}, false)")

    async def hold(self, target: str) -> None:
        """Press the button of the mouse as `click` does, and keep it down until `release`."""
        x, y = await self._place(f"{FIND}({_literal(target)}, false)")
        await self._move_at(x, y)
        await self._button_at("mousePressed", x, y)

    async def release(self, target: str) -> None:
        """Release the mouse button over the present place of a target."""
        x, y = await self._place(f"{FIND}({_literal(target)}, false)")
        await self._button_at("mouseReleased", x, y)

    async def fill(self, label: str, value: str | bool | Path) -> None:
        """Fill a field, found by its label's text (or its beginning) or by a selector.

        Args:
            label: which.
            value: is written by hand, is an option of a list, ticks a box or not, or is a file.
        """
        field = f"{FIND}({_literal(label)}, true)"
        await self._place(field)
        kind = await self.value(f"{field}?.type")
        if isinstance(value, bool):
            if await self.run(f"{field}.checked") != value:
                await self._press(field)
        elif isinstance(value, Path):
            handle = await self.ask("Runtime.evaluate", expression=field)
            await self.ask(
                "DOM.setFileInputFiles",
                files=[str(value)],
                objectId=handle["result"]["objectId"],
            )
        elif kind in ("select-one", "date", "datetime-local", "time", "month", "range", "color"):
            refusal = await self.run(f"{CHOOSE}({field}, {_literal(value)})")
            assert refusal is None, (label, refusal)
        else:
            await self.run(f"(function (each) {{ each.focus(); each.select(); }})({field})")
            await self.press("Delete")
            await self.ask("Input.insertText", text=value)

    async def press(self, keys: str) -> None:
        """Press a key, or several at once: `Enter`, `Shift+Tab`, `a`."""
        *held, key = keys.split("+") if len(keys) > 1 else [keys]
        code, number, text = KEYS.get(key, (f"Key{key.upper()}", ord(key[0].upper()), key))
        modifiers = sum(MODIFIERS[each] for each in held)
        event: dict[str, Any] = {
            "key": key,
            "code": code,
            "windowsVirtualKeyCode": number,
            "modifiers": modifiers,
        }
        has_text = text and not modifiers & ~MODIFIERS["Shift"]
        down = {"type": "keyDown", "text": text} if has_text else {"type": "rawKeyDown"}
        await self.ask("Input.dispatchKeyEvent", **event, **down)
        await self.ask("Input.dispatchKeyEvent", **event, type="keyUp")

    async def type(self, text: str) -> None:
        """Write where the focus is."""
        await self.ask("Input.insertText", text=text)

    async def focused(self) -> str:
        """Return the words of the focused element: its label, text or tag."""
        return str(
            await self.run(
                f"(({{ activeElement: on }}) => on.labels?.length ? {SAYS}(on.labels[0]) :"
                " on.getAttribute('aria-label') || on.textContent.trim() || on.tagName)(document)"
            )
        )

    async def emulate(
        self,
        *,
        dark: bool | None = None,
        width: int | None = None,
        height: int = HEIGHT,
        language: str | None = None,
        offline: bool | None = None,
    ) -> None:
        """Emulate another machine: colour scheme, width of the window, language, network."""
        if dark is not None:
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            await self.ask("Emulation.setEmulatedMedia", features=[scheme])
        if width is not None:
            await self.ask(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=height,
                deviceScaleFactor=1,
                mobile=False,
            )
            await self.until(f"innerWidth === {width}")  # the page is notified a moment later
        if language is not None:
            await self.ask(
                "Emulation.setUserAgentOverride", userAgent=self._agent, acceptLanguage=language
            )
        if offline is not None:
            await self.ask(
                "Network.emulateNetworkConditions",
                offline=offline,
                latency=0,
                downloadThroughput=-1,
                uploadThroughput=-1,
            )

    async def screenshot(self, path: Path) -> None:
        """Write the visible part to a PNG file."""
        answer = await self.ask("Page.captureScreenshot", format="png", optimizeForSpeed=False)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(answer["data"]))

    async def close(self) -> None:
        """Close the tab."""
        await self.ask("Page.close")

    async def _place(self, element: str) -> tuple[float, float]:
        """Return where an element is, once it is there and two looks have found it there."""
        script = f"{PLACE}({element})"
        before, place = None, await self.value(script)
        while place != before:  # content above it moves it
            before, place = place, await self.value(script)
        x, y = place
        return float(x), float(y)

    async def _press(self, element: str) -> None:
        for _ in range(MOST_PRESSES):
            x, y = await self._place(element)
            await self._move_at(x, y)
            if not await self.run(f"{AIM}({element})"):
                continue
            for kind in ("mousePressed", "mouseReleased"):
                await self._button_at(kind, x, y)
            state = await self.value(AIMED)
            assert state != "replaced", f"the page has replaced {element} while it was pressed"
            if state == "hit":
                return
        raise AssertionError(f"{element} was never hit; {await self._condition()}")

    async def _move_at(self, x: float, y: float) -> None:
        await self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def _button_at(self, kind: str, x: float, y: float) -> None:
        await self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


class Visit:
    """A context of a browser: tabs that share cookies, storage and cache with no other context."""

    def __init__(self, wire: Wire, context: str, expected: Sequence[str]) -> None:
        self._wire = wire
        self._context = context
        self.complaints = Complaints(expected=list(expected))
        self.tabs: list[Tab] = []

    @property
    def requests(self) -> list[Sent]:
        """The requests of all its tabs."""
        return [sent for tab in self.tabs for sent in tab.requests]

    def expect(self, pattern: str) -> None:
        """Expect errors in the console that match a pattern."""
        self.complaints.expected.append(pattern)

    async def open(self, url: str, **emulated: Any) -> Tab:
        """Open an address in a new tab; `emulated` describes its machine (see `emulate`)."""
        target = await self._wire.ask(
            "Target.createTarget", url="about:blank", browserContextId=self._context
        )
        session = await self._wire.ask(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        tab = Tab(self._wire, session["sessionId"], self.complaints)
        await tab.prepare()
        await tab.emulate(**emulated)
        await tab.goto(url)
        self.tabs.append(tab)
        return tab


@contextmanager
def chromium(folder: Path) -> Iterator[str]:
    """Run a browser; the address of its DevTools."""
    profile = folder / "profile"
    port = profile / "DevToolsActivePort"
    command = [str(CHROMIUM), *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    with (folder / "chromium.log").open("wb") as log:
        browser = subprocess.Popen(
            [*command, "about:blank"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        until_true(
            lambda: port.exists() and port.read_text().count("\n") == 1,
            lambda: (folder / "chromium.log").read_text(errors="replace"),
        )
        number, path = port.read_text().split("\n")
        yield f"ws://127.0.0.1:{number}{path}"
    finally:
        browser.terminate()
        browser.wait()


@asynccontextmanager
async def visiting(
    address: str, http: aiohttp.ClientSession, expected: Sequence[str] = ()
) -> AsyncIterator[Visit]:
    """Yield a new context of a browser; fail at its end if a page has logged an error.

    Args:
        address: of the browser's DevTools.
        http: the session to connect with.
        expected: patterns of complaints that are as they should be.
    """
    async with http.ws_connect(address, max_msg_size=MESSAGE_BYTES) as socket:
        wire = Wire(socket)
        reading = asyncio.create_task(wire.read())
        context = (await wire.ask("Target.createBrowserContext"))["browserContextId"]
        visit = Visit(wire, context, expected)
        try:
            yield visit
            for tab in visit.tabs:  # its last message is here when this is answered
                with contextlib.suppress(DevToolsError):
                    await tab.run("0")
            assert not visit.complaints.unexpected(), visit.complaints.unexpected()
        finally:
            with contextlib.suppress(DevToolsError, ConnectionError):
                await wire.ask("Target.disposeBrowserContext", browserContextId=context)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading


@asynccontextmanager
async def browsing(
    url: str,
    http: aiohttp.ClientSession,
    folder: Path,
    *,
    expected: Sequence[str] = (),
    emulated: Mapping[str, Any] | None = None,
) -> AsyncIterator[Tab]:
    """Open a page in a new browser; see `visiting`."""
    running = chromium(folder)
    address = await asyncio.to_thread(running.__enter__)
    try:
        async with visiting(address, http, expected) as visit:
            yield await visit.open(url, **(emulated or {}))
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


def _literal(text: str) -> str:
    """Return a text as JavaScript writes it."""
    return msgspec.json.encode(text).decode()
