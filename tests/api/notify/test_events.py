"""Events over HTTP: in pages, and followed live after the missed ones."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest
from support.base.waiting import until
from support.clients.story import worker_token
from support.daemons.bounded import api_bounds, bounded
from support.daemons.service import Person, Service, running, settings_for

from market.events import recording as event_log
from market.events.catalogue import DeployFinished, Ping
from market.notify.feed import STREAMS_PER_LOGIN_MAX, FeedPace
from storage.engines.store import Transaction

PATH = "/api/events/stream"


class Heard(NamedTuple):
    """An event as its reader got it."""

    name: str
    id: str
    data: Any


class Reader:
    """Follower of a user's events."""

    def __init__(self, service: Service, response: aiohttp.ClientResponse) -> None:
        self._service = service
        self._response = response
        self.heartbeats = 0
        self.place = ""  # where to go on from, said without an event

    async def next(self) -> Heard | None:
        """Return the next event, None at the end."""
        name = event_id = data = ""
        async with asyncio.timeout(20):
            async for line in self._response.content:
                text = line.decode().removesuffix("\n")
                self.heartbeats += text == ":"
                key, _, value = text.partition(": ")
                if key == "event":
                    name = value
                elif key == "id":
                    event_id = value
                elif key == "data":
                    data = value
                elif not text and not name:
                    self.place, event_id = event_id or self.place, ""
                elif not text:
                    heard = Heard(name, event_id, msgspec.json.decode(data))
                    self._service._declared.check_event(PATH, name, heard.data, "GET")
                    return heard
        return None

    async def until(self, name: str) -> Heard:
        """Return the next event of a type."""
        while True:
            heard = await self.next()
            assert heard is not None, f"the stream ended before {name}"
            if heard.name == name:
                return heard


@asynccontextmanager
async def following(
    service: Service, person: Person, query: str = "", last_id: str = ""
) -> AsyncIterator[Reader]:
    headers = {"Authorization": f"Bearer {person.token}"}
    if last_id:
        headers["Last-Event-ID"] = last_id
    async with service.http.get(service.url + PATH + query, headers=headers) as response:
        assert response.status == 200, await response.read()
        assert response.headers["Content-Type"] == "text/event-stream"
        yield Reader(service, response)


async def ping(service: Service, person: Person, subject: str = "w") -> str:
    """Record an event of a user, and return its identifier."""

    async def record(tx: Transaction) -> str:
        context = service.daemon.market.context
        row = await event_log.record(tx, context, person.user_id, Ping(subject), subject_id=subject)
        return row.id

    return await service.daemon.store.write(record)


async def pings(service: Service, person: Person, count: int, *, size: int = 1) -> list[str]:
    """Record many events of a user at the same time, and return their identifiers."""
    news = [event_log.NewEvent(person.user_id, Ping("x" * size)) for _ in range(count)]
    context = service.daemon.market.context
    rows = await service.daemon.store.write(event_log.record_all, context, news)
    return [row.id for row in rows]


async def frequent(service: Service, person: Person, count: int) -> None:
    """Record events of another type for a user."""
    news = [event_log.NewEvent(person.user_id, DeployFinished("d")) for _ in range(count)]
    context = service.daemon.market.context
    await service.daemon.store.write(event_log.record_all, context, news)


async def page(service: Service, person: Person, query: str = "") -> Any:
    answer = await service.call("GET", f"/api/events{query}", token=person.token)
    assert answer.status == 200, answer.body
    return answer.body


# --- pages -----------------------------------------------------------------------------------


async def test_events_are_listed_newest_first_in_parts(service: Service) -> None:
    me, other = await service.person(), await service.person()
    ids = [await ping(service, me, f"{number}") for number in range(5)]
    await ping(service, other)
    first = await page(service, me, "?limit=2&types=test.ping")
    assert [each["id"] for each in first["events"]] == ids[:2:-1]
    second = await page(service, me, f"?limit=3&types=test.ping&after={first['next']}")
    assert [each["id"] for each in second["events"]] == ids[2::-1]
    assert "next" not in second
    [newest, *_] = first["events"]
    assert newest["type"] == "test.ping"
    assert (newest["subject_id"], newest["data"]) == ("4", {"webhook_id": "4"})
    assert newest["created_at"].endswith("Z")


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_of_a_rare_type_all_are_found_part_by_part(service: Service, order: str) -> None:
    service.daemon.market.event_feed.pace = FeedPace(looked_at_events=4)
    me = await service.person()
    rare = [await ping(service, me)]
    for count in (9, 0, 4):
        await frequent(service, me, count)
        rare.append(await ping(service, me))
    found: list[str] = []
    query = f"?types=test.ping&order={order}&limit=2"
    part = await page(service, me, query)
    for _ in range(20):
        found += [each["id"] for each in part["events"]]
        if "next" not in part:
            break
        part = await page(service, me, f"{query}&after={part['next']}")
    assert found == (rare if order == "oldest" else rare[::-1])


async def test_events_are_listed_oldest_first_behind_one(service: Service) -> None:
    me = await service.person()
    ids = [await ping(service, me) for _ in range(4)]
    found = await page(service, me, f"?order=oldest&limit=2&types=test.ping&after={ids[0]}")
    assert [each["id"] for each in found["events"]] == ids[1:3]
    assert found["next"] == ids[2]


async def test_only_types_that_are_wanted_are_listed(service: Service) -> None:
    me = await service.person("10")
    bought = await service.buy(me)
    await service.end(me, bought)
    await ping(service, me)
    found = await page(service, me, "?types=session.ended,%20session.created")
    assert [each["type"] for each in found["events"]] == ["session.ended", "session.created"]


@pytest.mark.parametrize("query", ["types=session.gone", "types=usage", "after=x", "order=up"])
async def test_events_that_cannot_be_listed_are_refused(service: Service, query: str) -> None:
    me = await service.person()
    answer = await service.call("GET", f"/api/events?{query}", token=me.token)
    assert (answer.status, answer.code) == (400, "invalid_field")
    assert answer.field == query.partition("=")[0]


# --- streams ---------------------------------------------------------------------------------


async def test_an_event_is_sent_at_once(service: Service) -> None:
    me, other = await service.person("10"), await service.person()
    async with following(service, me) as mine, following(service, other) as theirs:
        bought = await service.buy(me)
        heard = await mine.until("session.created")
        assert heard.data["id"] == heard.id
        assert heard.data["subject_id"] == bought.id
        assert heard.data["data"]["quota_bytes"] == 10**9
        await ping(service, other)
        first = await theirs.next()
        assert first is not None
        assert first.name == "test.ping"


async def test_only_wanted_types_are_sent(service: Service) -> None:
    me = await service.person("10")
    async with following(service, me, "?types=session.ended") as reader:
        await service.end(me, await service.buy(me))
        first = await reader.next()
        assert first is not None
        assert first.name == "session.ended"


@pytest.mark.parametrize("named", ["header", "query"])
async def test_missed_events_come_first(service: Service, named: str) -> None:
    me = await service.person()
    ids = [await ping(service, me) for _ in range(3)]
    query = "" if named == "header" else f"?since={ids[0]}"
    last_id = ids[0] if named == "header" else ""
    async with following(service, me, query, last_id) as reader:
        found = [await reader.until("test.ping") for _ in range(3)]
        assert [each.id for each in found] == ids  # and the named one again
        new = await ping(service, me)
        assert (await reader.until("test.ping")).id == new


async def test_a_stream_that_breaks_before_there_is_an_event_misses_none(service: Service) -> None:
    me = await service.person()
    async with following(service, me, "?types=test.ping") as reader:
        first = await ping(service, me)
        assert (await reader.until("test.ping")).id == first
        place = reader.place
    assert place < first
    missed = await ping(service, me)
    async with following(service, me, "?types=test.ping", place) as reader:
        assert [(await reader.until("test.ping")).id for _ in range(2)] == [first, missed]
        assert not reader.place


async def test_many_that_were_missed_come_in_parts(service: Service) -> None:
    service.daemon.market.event_feed.pace = FeedPace(page_events=7, looked_at_events=10)
    me = await service.person()
    ids = [await ping(service, me) for _ in range(25)]
    await frequent(service, me, 40)
    ids += [await ping(service, me) for _ in range(25)]
    async with following(service, me, "?types=test.ping", ids[0]) as reader:
        assert [(await reader.until("test.ping")).id for _ in ids] == ids


async def test_a_text_that_is_no_identifier_is_refused(service: Service) -> None:
    me = await service.person()
    for path, headers, field in (
        (f"{PATH}?since=x", {}, "since"),
        (PATH, {"Last-Event-ID": "x"}, "Last-Event-ID"),
        (f"{PATH}?types=usage,x", {}, "types"),
    ):
        answer = await service.call("GET", path, token=me.token, headers=headers)
        assert (answer.status, answer.code, answer.field) == (400, "invalid_field", field)


async def test_a_stream_without_events_is_kept_in_use(service: Service) -> None:
    service.daemon.market.event_feed.pace = FeedPace(heartbeat_seconds=0.05)
    me = await service.person()
    async with following(service, me) as reader:
        hearing = asyncio.create_task(reader.next())
        await until(lambda: reader.heartbeats > 3)
        await ping(service, me)
        heard = await hearing
        assert heard is not None
        assert heard.name == "test.ping"


@bounded(api_bounds(login_check_seconds=0.05))
@pytest.mark.parametrize("how", ["logged out", "password changed"])
async def test_a_login_that_is_over_ends_its_streams(service: Service, how: str) -> None:
    me = await service.person()
    login = {"email": me.email, "password": "long enough"}
    answer = await service.call("POST", "/auth/login", login)
    other = Person(me.email, me.user_id, answer.body["token"])
    async with following(service, me, "?types=test.ping") as reader:
        if how == "logged out":
            await service.call("POST", "/auth/logout", token=me.token)
        else:
            change = {"old_password": "long enough", "new_password": "longer than it"}
            changed = await service.call("POST", "/auth/password/change", change, token=other.token)
            assert changed.status == 200, changed.body
        bye = await reader.next()
        assert bye is not None
        assert (bye.name, bye.data) == ("bye", {"reason": "logged_out"})
        assert await reader.next() is None


async def test_a_daemon_that_drains_says_goodbye(service: Service) -> None:
    me = await service.person()
    async with following(service, me) as reader:
        assert service.daemon.services is not None
        service.daemon.services.drain()
        bye = await reader.next()
        assert bye is not None
        assert (bye.name, bye.data) == ("bye", {"reason": "draining"})
        assert await reader.next() is None


async def test_a_login_has_a_few_streams(service: Service) -> None:
    me, other = await service.person(), await service.person()
    feed = service.daemon.market.event_feed
    streams = [following(service, me) for _ in range(STREAMS_PER_LOGIN_MAX)]
    for stream in streams:
        await stream.__aenter__()
    answer = await service.call("GET", PATH, token=me.token)
    assert (answer.status, answer.code) == (429, "too_busy")
    async with following(service, other):
        assert len(feed) == len(streams) + 1
    for stream in streams:
        await stream.__aexit__(None, None, None)
    await until(lambda: len(feed) == 0)
    assert feed._by_login == feed._by_user == {}


async def test_all_streams_together_have_a_share(tmp_path: Path) -> None:
    settings = settings_for(f"sqlite:///{tmp_path}/proxyd.db", limits={"event_streams": 1})
    async with running(settings) as service:
        me, other = await service.person(), await service.person()
        async with following(service, me):
            answer = await service.call("GET", PATH, token=other.token)
            assert (answer.status, answer.code) == (429, "too_busy")
            assert (await service.call("GET", "/auth/me", token=other.token)).status == 200


@bounded(api_bounds(event_write_seconds=0.2))
async def test_a_reader_that_does_not_read_is_cut_and_takes_little(service: Service) -> None:
    me = await service.person()
    feed = service.daemon.market.event_feed
    head = f"GET {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {me.token}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", service.api_port, limit=1)
    writer.write(head.encode())
    await until(lambda: len(feed) == 1)
    [slow] = feed._by_user[me.user_id]
    most = 0
    while len(feed):
        await pings(service, me, 300, size=3_000)
        most = max(most, len(slow._rows))
    assert most <= feed.pace.queued_events
    writer.close()
    assert reader.at_eof() is False


async def test_a_reader_that_was_slow_misses_nothing(service: Service) -> None:
    service.daemon.market.event_feed.pace = FeedPace(queued_events=5)
    me = await service.person()
    async with following(service, me) as reader:
        ids = await pings(service, me, 60)
        assert [(await reader.until("test.ping")).id for _ in ids] == ids


async def test_a_notice_that_was_lost_is_made_up_for(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = await service.person()
    bus = service.daemon.core.bus
    async with following(service, me, "?types=test.ping") as reader:
        first = await ping(service, me)
        assert (await reader.until("test.ping")).id == first
        with monkeypatch.context() as lost:
            lost.setattr(bus, "publish", lambda topic, rows: None)
            second = await ping(service, me)
        bus.catch_up()
        assert (await reader.until("test.ping")).id == second  # and the first one not again


# --- jobs, end to end ------------------------------------------------------------------------


async def test_the_life_of_a_job_is_sent(service: Service) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    token = await worker_token(service, owner)
    job = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    async with following(service, buyer) as reader:
        answer = await service.call("POST", "/api/jobs", job, token=buyer.token)
        job_id, headers = answer.body["job_id"], {"X-Worker-Token": token}
        await service.call("POST", f"/api/jobs/{job_id}/accept", headers=headers)
        await service.call(
            "POST", f"/api/worker/jobs/{job_id}/complete", {"result": "done"}, headers=headers
        )
        for name in ("job.created", "job.accepted", "job.completed"):
            heard = await reader.until(name)
            assert heard.data["data"]["job_id"] == job_id
