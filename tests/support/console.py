"""The console in a browser: pages that are asked for by somebody who is logged in."""

from typing import Any

import msgspec

from support.browser import Tab, Visit
from support.service import Person, Service

PASSWORD = "long enough"  # of every person of `Service.person`

LOGIN = """
fetch("/auth/login", {
  method: "POST",
  headers: { "Content-Type": "application/json", "X-Requested-By": "console" },
  body: JSON.stringify(%s),
}).then((answer) => answer.status)
"""


async def log_in(tab: Tab, email: str, password: str = PASSWORD) -> None:
    """Have the browser of a tab keep a login; the tab is at a page of the console."""
    body = {"email": email, "password": password, "keep": "cookie"}
    assert await tab.run(LOGIN % msgspec.json.encode(body).decode()) == 200


async def opened(visit: Visit, service: Service, person: Person, path: str, **emulated: Any) -> Tab:
    """Open a page of the console as somebody, on a machine that `emulated` says (`Tab.emulate`)."""
    tab = await visit.open(f"{service.url}/login", **emulated)
    await log_in(tab, person.email)
    await tab.goto(service.url + path)
    return tab
