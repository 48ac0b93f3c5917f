"""The public side over HTTP: its facts, the modes of registration, and the repeated request."""

from pathlib import Path
from typing import Any

from support.daemons.service import Answer, Service, running_in

from market.staff.base.roles import Machine
from market.staff.site import site

ADA = {"username": "ada", "email": "ada@example.com", "password": "correct horse"}


async def register(service: Service, key: str = "", **changes: Any) -> Answer:
    headers = {"Idempotency-Key": key} if key else {}
    return await service.call("POST", "/auth/register", {**ADA, **changes}, headers=headers)


async def invite(service: Service) -> str:
    context = service.daemon.market.context
    made = await site.invite(context, Machine("root"), uses=1, days=1, why="a friend")
    return made.code


async def test_a_visitor_reads_the_facts_of_the_service(tmp_path: Path) -> None:
    facts = {"name": "Ada's", "support": "help@example.com", "registration": "closed"}
    async with running_in(tmp_path, site=facts) as service:
        answer = await service.call("GET", "/api/site")
        assert answer.body == {"ok": True, **facts, "texts": []}
        answer = await register(service)
        assert (answer.status, answer.code) == (400, "registration_closed")
        async with service.http.get(f"{service.url}/register") as page:
            assert "<title>Ada&#x27;s</title>" in await page.text()


async def test_an_invitation_is_used_once_also_by_a_repeated_request(tmp_path: Path) -> None:
    async with running_in(tmp_path, site={"registration": "invited"}) as service:
        answer = await register(service)
        assert (answer.status, answer.code) == (400, "invitation_required")
        assert answer.field == "invitation"
        code = await invite(service)
        first = await register(service, "one", invitation=code)
        assert first.status == 200
        again = await register(service, "one", invitation=code)
        assert again.body == first.body
        other = await register(service, "two", invitation=code, email="b@example.com")
        assert (other.status, other.code) == (400, "invitation_invalid")


async def test_the_logo_and_the_colours_are_served(tmp_path: Path) -> None:
    logo = tmp_path / "logo.svg"
    logo.write_text('<svg xmlns="http://www.w3.org/2000/svg"><path d="M0 0h5"/></svg>')
    look = {"logo": str(logo), "colour": "#7a1fa2"}
    async with running_in(tmp_path, site=look) as service:
        async with service.http.get(f"{service.url}/site/logo") as page:
            assert page.headers["Content-Type"] == "image/svg+xml"
            assert "sandbox" in page.headers["Content-Security-Policy"]
            assert await page.read() == logo.read_bytes()
        async with service.http.get(f"{service.url}/login") as page:
            shell = await page.text()
        [style] = [line.split('"')[3] for line in shell.splitlines() if "site.css" in line]
        async with service.http.get(service.url + style) as page:
            assert await page.text() == ":root { --brand: light-dark(#7a1fa2, #7bb8f5) }\n"
