"""Usage over the API: it adds up to the bill, as JSON and as a table; the refusals."""

import csv
import io
import re
from typing import Any
from urllib.parse import quote

import pytest
from support.base.cases import cases
from support.base.ports import closed_port
from support.base.waiting import until
from support.clients.socks import Client
from support.clients.story import buy, reached, used
from support.daemons.service import Bought, Person, Service
from support.targets import targets

SIZE = 5_000
PRICE = 0.7
# Numbers, identifiers, times, words: nothing that a program takes for a formula, or that is quoted.
CELL = re.compile(r"(?:[0-9A-Za-z][0-9A-Za-z .:_-]*)?")


async def asked(
    service: Service, person: Person, path: str = "/api/usage", **query: str
) -> dict[str, Any]:
    words = "&".join(f"{name}={quote(value)}" for name, value in query.items())
    answer = await service.call("GET", f"{path}?{words}", token=person.token)
    assert answer.status == 200, answer.body
    return dict(answer.body)


async def table(service: Service, person: Person, query: str = "") -> list[dict[str, str]]:
    """Return the rows of the table."""
    headers = {"Authorization": f"Bearer {person.token}"}
    async with service.http.get(f"{service.url}/api/usage.csv?{query}", headers=headers) as reply:
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "text/csv; charset=utf-8; header=present"
        disposition = reply.headers["Content-Disposition"]
        assert re.fullmatch(r'attachment; filename="usage-[\d-]{21}\.csv"', disposition)
        text = (await reply.read()).decode()
    assert text.endswith("\r\n")
    assert text.count("\n") == text.count("\r\n")
    rows = list(csv.DictReader(io.StringIO(text), strict=True))
    assert all(CELL.fullmatch(cell) for row in rows for cell in row.values())
    return rows


async def refused(service: Service, person: Person, query: str) -> tuple[int, str, str | None]:
    answers = [
        await service.call("GET", f"{path}?{query}", token=person.token)
        for path in ("/api/usage", "/api/usage.csv")
    ]
    first, second = ((each.status, each.code, each.field) for each in answers)
    assert first == second
    return first


async def test_the_rows_of_a_session_are_its_bill_to_the_byte(service: Service) -> None:
    person, bought = await buy(service, price=PRICE)
    other = await service.buy(person, price=PRICE)
    async with targets.echo() as target:
        for session, count in ((bought, 3), (other, 1)):
            client = await reached(service, session, target)
            for _ in range(count):
                await client.send(bytes(SIZE))
                await client.receive(SIZE)
            await client.close()

        async def reported() -> bool:
            shown = await asked(service, person)
            total = shown["total"]
            assert total["bytes"] == 8 * SIZE, "bytes are there before they are reported"
            return bool(total["connections"] == 2)

        await until(reported, "everything is reported")
    for each in (bought, other):
        await service.end(person, each)
    shown = await asked(service, person, by="session", step="day")
    assert {each["session_id"]: each["bytes"] for each in shown["series"]} == {
        bought.id: await used(service, person, bought),
        other.id: await used(service, person, other),
    }
    assert {each["session_id"]: each["connections"] for each in shown["series"]} == {
        bought.id: 1,
        other.id: 1,
    }
    total, paid = shown["total"], 10 - await service.balance(person)
    assert total["bytes"] == sum(each["bytes"] for each in shown["series"])
    assert total["gb"] == 8 * SIZE / 10**9
    assert abs(total["cost_usd"] - paid) < 2e-6, "each bill is rounded down to a millionth"
    alone = await asked(service, person, session_id=bought.id.upper())
    assert alone["total"]["bytes"] == 6 * SIZE
    assert "session_id" not in alone["series"][0]
    assert len(alone["series"]) == 25, "hours of nothing are there, too"
    summary = await asked(service, person, "/api/usage/summary", tz="Asia/Seoul")
    for period in ("today", "last_7_days", "last_30_days", "all"):
        assert summary[period]["bytes"] == 8 * SIZE
    assert summary["forecast"] is None, "one hour says nothing of a day"
    rows = await table(service, person, "by=session")
    assert sum(int(row["bytes"]) for row in rows) == 8 * SIZE
    assert {row["session_id"] for row in rows} == {bought.id, other.id}
    assert sum(float(row["cost_usd"]) for row in rows) == pytest.approx(total["cost_usd"])
    assert "e" not in "".join(row["gb"] + row["cost_usd"] for row in rows).lower()


async def test_the_reasons_of_refused_connections_are_listed_by_session(service: Service) -> None:
    """By policy, by a target, for a wish, and because the session is over."""
    person, bought = await buy(service)
    over = await service.buy(person)
    await service.end(person, over)

    async def shown(session: Bought, username: str, port: int) -> None:
        client = await Client.open(service.proxy_port)
        if await client.log_in(username, session.password) == 0:
            assert await client.connect("127.0.0.1", port) != 0
        await client.close()

    with closed_port() as closed:
        for port in (25, 25, closed):
            await shown(bought, bought.username, port)
    await shown(bought, f"{bought.username}-country-nowhere", 80)
    await shown(over, over.username, 80)
    for session, expected in (
        (bought, {"not_allowed": 2, "refused": 1, "parameters": 1}),
        (over, {"over": 1}),
    ):

        async def told(session: Bought = session, expected: dict[str, int] = expected) -> bool:
            found = await asked(service, person, session_id=session.id, fill="false")
            return found["total"]["refusals"] == expected and not found["total"]["connections"]

        await until(told, "each is counted once")
    rows = await table(service, person, "by=session&fill=false")
    assert {row["session_id"]: (row["refused"], row["reasons"]) for row in rows} == {
        bought.id: ("4", "not_allowed:2 parameters:1 refused:1"),
        over.id: ("1", "over:1"),
    }


async def test_no_user_sees_the_usage_of_others(service: Service) -> None:
    _, bought = await buy(service)
    stranger = await service.person()
    assert (await refused(service, stranger, f"session_id={bought.id}")) == (
        404,
        "session_not_found",
        "session_id",
    )
    assert (await asked(service, stranger, by="session"))["series"] == []
    for path in ("", ".csv", "/summary"):
        assert (await service.call("GET", f"/api/usage{path}")).status == 401


async def test_ranges_are_whole_and_say_so(service: Service) -> None:
    person = await service.person()
    shown = await asked(service, person)
    assert shown["step"] == "hour"
    assert [each["at"] for each in shown["series"]] == sorted(
        each["at"] for each in shown["series"]
    )
    assert shown["series"][0]["at"] == shown["from"]
    assert shown["complete_until"] <= shown["series"][-1]["at"]
    days = await asked(service, person, step="day")
    assert len(days["series"]) == 31
    assert all(each["day"] == each["at"][:10] for each in days["series"])
    rows = await table(service, person, "step=day")
    assert [row["day"] for row in rows] == [each["day"] for each in days["series"]]
    assert rows[0]["to"] == rows[1]["from"]
    same = await asked(
        service, person, step="day", **{"from": f"{days['from'][:10]}T03:00:00+03:00"}
    )
    assert same["from"] == days["from"]


@cases(
    ("query", "field"),
    [
        ("from=yesterday", "from"),
        ("to=2026-11-21T19:00:00", "to"),  # no offset: whose time?
        ("from=2026-11-21T19:00:00+03:00", "from"),  # a plus in a URL is a space
        ("from=2026-02-30", "from"),
        ("from=2026-11-21T25:00:00Z", "from"),
        ("from=0001-01-01T00:00:00%2B14:00&to=0000-01-01", "to"),
        ("from=20261121", "from"),
        ("from=2999-01-01", "from"),
        ("from=2020-01-02&to=2020-01-01&step=day", "from"),
        ("from=%D9%A2%D9%A0%D9%A2%D9%A0-01-01", "from"),  # digits, but not ours
        ("from=2020-01-01&to=2020-01-02", "from"),  # hours are deleted before that
        ("from=2020-01-01&to=2020-01-02&step=day&tz=Europe/Berlin", "from"),
        ("step=week", "step"),
        ("by=host", "by"),
        ("fill=perhaps", "fill"),
        ("session_id=7", "session_id"),
        ("tz=Nowhere", "tz"),
        ("tz=..%2F..%2Fetc%2Fpasswd", "tz"),
    ],
)
async def test_a_range_that_cannot_be_answered_is_refused_by_name(
    service: Service, query: str, field: str
) -> None:
    person = await service.person()
    assert await refused(service, person, query) == (400, "invalid_field", field)


async def test_too_long_a_range_is_refused_with_the_needed_change(service: Service) -> None:
    person = await service.person()
    answer = await service.call("GET", "/api/usage?step=day&from=2001-01-01", token=person.token)
    assert (answer.status, answer.code) == (400, "too_many_rows")
    assert "2,200 at most" in answer.body["error"]["message"]
    strict = {"Prefer": "handling=strict"}
    path = "/api/usage?from=2026-01-01&begins=2026-01-01"
    answer = await service.call("GET", path, token=person.token, headers=strict)
    assert (answer.code, answer.field) == ("unknown_field", "begins")
