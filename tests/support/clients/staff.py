"""Members of the staff at the staff API of a running daemon."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

from market.staff.base.callers import StaffScope
from market.staff.base.roles import Role
from market.staff.members import accounts, keys, logins
from market.staff.members.accounts import Created
from market.staff.members.keys import NewStaffKey
from proxyd.ops.processes.listening import bound_port
from storage.engines.store import Transaction
from support.daemons.declared import declared
from support.daemons.service import Answer, Service, running, settings_for
from support.database import sqlite
from support.market.staff import FACTORS, PASSWORD, ROOT

PREFIX = "/staff/api/v1"
STAFF: dict[str, Any] = {"host": "127.0.0.1", "port": 0}


class StaffApi:
    """The staff API of a running daemon. Each answer is checked against its document."""

    def __init__(self, service: Service) -> None:
        self.service = service
        port = service.daemon.services.staff_port
        assert port is not None
        assert service.daemon.listeners.staff is not None
        self.http = port.http
        self.port = bound_port(service.daemon.listeners.staff)
        self.url = f"http://127.0.0.1:{self.port}"
        self.declared = declared(port.http)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Ask the staff API at a path below its prefix."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        data = None if body is None else msgspec.json.encode(body)
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        path = PREFIX + path
        request = self.service.http.request(method, self.url + path, data=data, headers=sent)
        async with request as response:
            parsed = msgspec.json.decode(await response.read())
            self.declared.check(method, path.partition("?")[0], response.status, parsed)
            return Answer(response.status, parsed, response.headers)

    async def download(self, path: str, token: str) -> tuple[Answer, bytes]:
        """Download a file."""
        headers = {"Authorization": f"Bearer {token}"}
        async with self.service.http.get(self.url + PREFIX + path, headers=headers) as response:
            content = await response.read()
            assert response.status == 200, content
            return Answer(response.status, None, response.headers), content

    async def upload(self, path: str, content: bytes, token: str) -> Answer:
        """Send a file."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "text/csv"}
        request = self.service.http.post(
            self.url + PREFIX + path, data=BytesIO(content), headers=headers
        )
        async with request as response:
            parsed = msgspec.json.decode(await response.read())
            self.declared.check("POST", PREFIX + path, response.status, parsed)
            return Answer(response.status, parsed, response.headers)

    async def age_factors(self) -> None:
        """Let the second factors of all logins be older than an act accepts."""

        async def age(tx: Transaction) -> None:
            seconds = logins.PROVED_SECONDS
            await tx.run("UPDATE staff_logins SET factor_at = factor_at - :age", age=seconds)

        await self.service.daemon.store.write(age)

    async def hire(self, role: Role, name: str = "") -> Created:
        """Add a member of the staff, by a command on the machine."""
        market = self.service.daemon.market
        return await accounts.create(
            market.context,
            market.passwords,
            FACTORS,
            ROOT,
            email=f"{name or role}@staff.example.com",
            password=PASSWORD,
            role=role,
            why="hired",
        )

    async def try_login(self, email: str, code: str, password: str = PASSWORD) -> Answer:
        """Try to log in."""
        return await self.call(
            "POST", "/login", {"email": email, "password": password, "code": code}
        )

    async def login(self, member: Created, code: int = 0) -> str:
        """Log a member in with one of the recovery codes, and return the token."""
        answer = await self.try_login(member.email, member.factor.codes[code])
        assert answer.status == 200, answer.body
        return str(answer.body["token"])

    async def key(self, scope: StaffScope, role: Role = Role.OPERATOR) -> str:
        """Make a key of a new member, by a command on the machine."""
        member = await self.hire(role, f"key-{scope}")
        new = NewStaffKey(name="a program", scopes=(scope,), allow_ips=("127.0.0.0/8",))
        made = await keys.create(self.service.daemon.market.context, ROOT, member.id, new, "made")
        return made.text

    async def token(self, role: Role, name: str = "") -> str:
        """Add a member, and log them in."""
        return await self.login(await self.hire(role, name))


@asynccontextmanager
async def staffed(
    folder: Path, url: str = "", **sections: dict[str, Any]
) -> AsyncIterator[StaffApi]:
    """Run a daemon with a staff API on a database, or on an SQLite database in a folder."""
    sections.setdefault("staff", {})
    sections["staff"] = {**STAFF, **sections["staff"]}
    async with running(settings_for(url or sqlite.database(folder), **sections)) as service:
        yield StaffApi(service)
