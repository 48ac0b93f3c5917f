"""A whole daemon inside the test's own event loop, with a client for its API."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from config.settings import Settings
from market.money.audit import audit_ledger
from market.money.money import Currency, micro
from proxyd.loop import clock
from proxyd.ops.processes.listening import bound_port
from proxyd.wiring.bounds import USUAL, Bounds
from proxyd.wiring.build import build
from proxyd.wiring.daemon import Daemon
from storage.engines.store import Transaction
from support.daemons.declared import declared
from support.database import sqlite
from support.market import deposits

TEST_SETTINGS: dict[str, Any] = {
    "api": {"port": 0},
    "proxy": {"port": 0},
    "egress": {"allow": ["127.0.0.0/8", "::1/128"]},
    "auth": {"argon2_time_cost": 1, "argon2_memory_kib": 64, "signing_key": "k" * 40},
    "limits": {"drain_seconds": 2.0, "registrations_per_hour": 0, "requests_per_second": 0},
}


def settings_for(url: str, **sections: dict[str, Any]) -> Settings:
    """Return settings for tests: free ports, cheap hashes, loopback targets; sections add more."""
    merged = {name: dict(values) for name, values in TEST_SETTINGS.items()}
    merged["storage"] = {"url": url}
    for name, values in sections.items():
        merged.setdefault(name, {}).update(values)
    return msgspec.convert(merged, Settings)


@dataclass
class Answer:
    """Answer of the API."""

    status: int
    body: Any
    headers: Any

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])

    @property
    def field(self) -> str | None:
        return self.body["error"].get("field")


@dataclass
class Person:
    """A user with an account."""

    email: str
    user_id: str
    token: str


@dataclass
class Bought:
    """A session that a user bought."""

    id: str
    username: str
    password: str
    cost_usd: float
    passwordless_port: int = 0


class Service:
    """A running daemon, its API and its proxy."""

    def __init__(self, running: Daemon, http: aiohttp.ClientSession) -> None:
        self.daemon = running
        self.http = http
        self.api_port = bound_port(running.listeners.api)
        self.proxy_port = bound_port(running.listeners.proxy)
        self.url = f"http://127.0.0.1:{self.api_port}"
        self.wishes = ""  # appended to the user name of every session that is bought
        self.homes: list[Any] = []  # nodes whose exits it borrows, in this process
        self._people = 0
        self._declared = declared(running.http)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        raw: bytes | io.BytesIO | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Ask the API; `raw` is sent as it is, `body` as JSON."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        data: bytes | io.BytesIO | None = raw
        if body is not None:
            data = msgspec.json.encode(body)
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        async with self.http.request(method, self.url + path, data=data, headers=sent) as response:
            text = await response.read()
            parsed = msgspec.json.decode(text) if text else None
            self._declared.check(method, path.partition("?")[0], response.status, parsed)
            return Answer(response.status, parsed, response.headers)

    async def upload(
        self, path: str, file: bytes | None, *, token: str | None = None, **fields: str
    ) -> Answer:
        """Send a form with a file."""
        form = aiohttp.FormData(default_to_multipart=True)
        for name, value in fields.items():
            form.add_field(name, value)
        if file is not None:
            content = io.BytesIO(file)
            form.add_field("file", content, filename="photo.jpg", content_type="image/jpeg")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self.http.post(self.url + path, data=form, headers=headers) as response:
            parsed = msgspec.json.decode(await response.read())
            self._declared.check("POST", path, response.status, parsed)
            return Answer(response.status, parsed, response.headers)

    async def stream(
        self, path: str, body: Any, *, token: str | None = None
    ) -> list[tuple[str, Any]]:
        """Ask for a stream of events, and return each one's name and data."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self.http.post(self.url + path, json=body, headers=headers) as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/event-stream"
            text = await response.text()
        events = []
        for block in text.removesuffix("\n\n").split("\n\n"):
            name, data = block.split("\n")
            event = name.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))
            self._declared.check_event(path, *event)
            events.append(event)
        return events

    async def person(self, usd: str = "0", credit: str = "0") -> Person:
        """Register a user and pay money in."""
        self._people += 1
        email = f"person{self._people}@example.com"
        answer = await self.call(
            "POST",
            "/auth/register",
            {"username": f"person{self._people}", "email": email, "password": "long enough"},
        )
        assert answer.status == 200, answer.body
        await self.fund(email, usd, Currency.USD)
        await self.fund(email, credit, Currency.CREDIT)
        return Person(email, answer.body["user"]["id"], answer.body["token"])

    async def fund(self, email: str, amount: str, currency: Currency = Currency.USD) -> None:
        """Pay money into an account."""
        if Decimal(amount):
            transfer = self.daemon.market.context.identifiers.new()
            await self.daemon.store.write(
                deposits.deposit,
                self.daemon.market.context,
                email=email,
                currency=currency,
                amount=micro(Decimal(amount)),
                reference=transfer,
                transfer_id=transfer,
                now=clock.seconds(),
            )

    async def buy(
        self,
        person: Person,
        *,
        quota: int = 10**9,
        price: float = 1.0,
        allow_ips: Sequence[str] = (),
    ) -> Bought:
        """Buy a session of `quota` bytes; clients from `allow_ips` need no password."""
        gb = Decimal(quota) / 10**9
        named = f', "allow_ips": {json.dumps(allow_ips)}' if allow_ips else ""
        answer = await self.call(
            "POST",
            "/api/bandwidth/create",
            raw=f'{{"gb": {gb:f}, "price_per_gb": {price}{named}}}'.encode(),
            token=person.token,
        )
        assert answer.status == 200, answer.body
        proxy = answer.body["proxy"]
        return Bought(
            answer.body["session_id"],
            proxy["username"] + self.wishes,
            proxy["password"],
            answer.body["cost_usd"],
            proxy.get("passwordless_port", 0),
        )

    async def sessions(self, person: Person, status: str = "all") -> list[dict[str, Any]]:
        """List a user's sessions."""
        answer = await self.call(
            "GET", f"/api/bandwidth/sessions?status={status}", token=person.token
        )
        assert answer.status == 200, answer.body
        return list(answer.body["sessions"])

    async def session(self, person: Person, bought: Bought) -> dict[str, Any]:
        """Return one of a user's sessions."""
        return next(each for each in await self.sessions(person) if each["id"] == bought.id)

    async def balance(self, person: Person) -> float:
        """Return the USD that a user can spend."""
        answer = await self.call("GET", "/auth/me", token=person.token)
        return float(answer.body["usd_balance"])

    async def expire(self, bought: Bought) -> None:
        """Set the expiry of a session to the past; the daemon notices it a moment later."""

        async def change(tx: Transaction) -> None:
            changed = await tx.run(
                "UPDATE bandwidth_sessions SET expires_at = :now WHERE id = :id",
                now=clock.seconds(),
                id=bought.id,
            )
            assert changed == 1

        await self.daemon.store.write(change)

    async def end(self, person: Person, bought: Bought) -> None:
        """End a session."""
        answer = await self.call(
            "POST", "/api/bandwidth/end", {"session_id": bought.id}, token=person.token
        )
        assert answer.status == 200, answer.body

    async def assert_audit(self) -> None:
        """Check that the ledger agrees with everything."""
        report = await audit_ledger(self.daemon.store)
        assert report.passed, report


@asynccontextmanager
async def running(settings: Settings, bounds: Bounds = USUAL) -> AsyncIterator[Service]:
    """Run a daemon. At the end it is drained.

    One connection reads from SQLite: see `store` in `tests/conftest.py`.

    Args:
        settings: the operator's.
        bounds: of its parts, where they are other than the usual ones.
    """
    built = await build(settings, bounds=replace(bounds, sqlite_readers=1))
    try:
        await built.start()
    except BaseException:
        await built.close()
        raise
    async with aiohttp.ClientSession() as http:
        service = Service(built, http)
        try:
            yield service
        finally:
            await built.close()
    await asyncio.sleep(0)


@asynccontextmanager
async def running_in(
    folder: Path,
    *,
    bounds: Bounds = USUAL,
    **sections: dict[str, Any],
) -> AsyncIterator[Service]:
    """Run a daemon on an SQLite database in a folder."""
    settings = settings_for(sqlite.database(folder), **sections)
    async with running(settings, bounds) as service:
        yield service
