"""The console in a browser: pages for a logged-in user, and lines that they show."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from support.console.browser import Tab, Visit
from support.daemons.process import ROOT
from support.daemons.service import Person, Service

PASSWORD = "long enough"  # of every person of `Service.person`

LOGIN = """
fetch("/auth/login", {
  method: "POST",
  headers: { "Content-Type": "application/json", "X-Requested-By": "console" },
  body: JSON.stringify(%s),
}).then((answer) => answer.status)
"""


# A page repeats its requests when its stream is late by a second, and those for devices every ten
# seconds. A busy machine may need longer to draw it.
PATIENT = """
for (const name of ["setTimeout", "setInterval"]) {
  const set = window[name];
  window[name] = (act, wait, ...rest) => set(act, wait >= 1000 ? 100 * wait : wait, ...rest);
}
"""


async def be_patient(tab: Tab) -> None:
    """Make the pages that a tab opens wait longer, so that each sends a request only once."""
    await tab.ask("Page.addScriptToEvaluateOnNewDocument", source=PATIENT)


async def log_in(tab: Tab, email: str, password: str = PASSWORD) -> None:
    """Log the browser of a tab in; the tab shows a page of the console."""
    body = {"email": email, "password": password, "keep": "cookie"}
    assert await tab.run(LOGIN % msgspec.json.encode(body).decode()) == 200


async def opened(visit: Visit, service: Service, person: Person, path: str, **emulated: Any) -> Tab:
    """Open a page of the console as a user, on a machine that `emulated` describes (`emulate`)."""
    tab = await visit.open(f"{service.url}/login", **emulated)
    await log_in(tab, person.email)
    await tab.goto(service.url + path)
    return tab


@asynccontextmanager
async def agent(folder: Path, lines: str) -> AsyncIterator[Path]:
    """Run the lines that the page showed, in a shell, as their reader would; yields the log."""
    setup, _, run = lines.rpartition("\n")
    environment = {
        **os.environ,
        "HOME": str(folder),
        "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
        "XDG_DATA_HOME": str(folder),
    }
    done = await asyncio.create_subprocess_shell(
        setup,
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await done.communicate(b"yes\n")
    assert done.returncode == 0, said.decode()
    log = folder / "log"
    with log.open("wb") as written:
        working = await asyncio.create_subprocess_shell(
            f"exec {run}", cwd=folder, env=environment, stdout=written, stderr=written
        )
    try:
        yield log
    finally:
        if working.returncode is None:
            working.send_signal(signal.SIGHUP)
            await working.wait()
