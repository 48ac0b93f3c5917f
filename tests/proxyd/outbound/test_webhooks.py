"""Webhooks over real sockets: deliveries, failures, and addresses that are never dialled."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook
from support.base.cases import cases
from support.base.ports import closed_port
from support.base.waiting import PATIENCE_SECONDS
from support.market.market import Market
from support.targets.tls import make_certificate

from market.base.networks import Address
from market.events import recording as event_log
from market.events.catalogue import DeployFinished
from market.notify.webhooks import Attempt, DeliveryOutcome, QueueBounds, Secret
from proxyctl.protocol.policy import Policy
from proxyd.egress.own import OwnAddresses
from proxyd.egress.resolve import DnsResolver, LookupTimedOutError, NameNotFoundError
from proxyd.outbound.host_pace import HostPace
from proxyd.outbound.posting import retry_after
from proxyd.outbound.webhooks import ATTEMPTS_PER_ENDPOINT, USUAL, SendingBounds, WebhookSender
from storage.engines.store import Transaction
from storage.notify.webhooks import DeliveryRow, DueRow

LOOPBACK = ("127.0.0.0/8", "::1/128")
ROW = DeliveryRow("d", "w", "u", "e", "test.ping", "pending", 0, 0, 0, None, None, None, 0)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nthanks"


@dataclass
class Receiver:
    """A server that keeps the requests, and answers the same each time."""

    answer: bytes = OK
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    is_held: bool = False
    most_at_once: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            )
            self.requests.append(head + await reader.readexactly(length))
            self.most_at_once = max(self.most_at_once, len(self.requests))
            if self.is_held:
                await self.released.wait()
            writer.write(self.answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@asynccontextmanager
async def receiving(
    answer: bytes = OK, *, tls: ssl.SSLContext | None = None, is_held: bool = False
) -> AsyncIterator[Receiver]:
    receiver = Receiver(answer, is_held=is_held)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.close()


class Names:
    """A resolver that says the next of its answers each time, and the last from then on."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = [[ip_address(each) for each in answer] for answer in answers]
        self.asked: list[str] = []

    def cached(self, name: str) -> list[Address] | None:
        return None

    async def resolve(self, name: str, asker: object = None) -> list[Address]:
        self.asked.append(name)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if not answer:
            raise NameNotFoundError(name)
        return answer


# A look goes on as long as attempts end, however long each takes on a busy machine.
PATIENT = SendingBounds(look_max_seconds=PATIENCE_SECONDS, room_seconds=PATIENCE_SECONDS)


def sender_of(
    market: Market | None = None,
    names: Names | DnsResolver | None = None,
    policy: Policy | None = None,
    tls: ssl.SSLContext | None = None,
    bounds: SendingBounds = USUAL,
) -> WebhookSender:
    return WebhookSender(
        None if market is None else market.webhooks,  # type: ignore[arg-type]
        names or Names(["127.0.0.1"]),
        policy or Policy(allow=LOOPBACK),
        agent="proxyd/test",
        tls=tls,
        bounds=bounds,
    )


def attempt_at(url: str) -> Attempt:
    return Attempt(ROW, url, {"webhook-id": "e"}, b'{"type":"test.ping"}', 1_000)


async def post(url: str, **given: object) -> DeliveryOutcome:
    return await sender_of(**given).post(attempt_at(url))  # type: ignore[arg-type]


async def test_the_arrived_bytes_are_the_signed_bytes() -> None:
    async with receiving() as receiver:
        outcome = await post(receiver.url)
    assert (outcome.status, outcome.error, outcome.answer) == (200, "", "thanks")
    [request] = receiver.requests
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /hook HTTP/1.1"
    assert "webhook-id: e" in lines
    assert "Content-Type: application/json" in lines
    assert "User-Agent: proxyd/test" in lines
    assert body == b'{"type":"test.ping"}'


@cases("status", [200, 201, 204, 299])
async def test_2xx_is_success(status: int) -> None:
    async with receiving(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status) as receiver:
        assert (await post(receiver.url)).error == ""


@cases("status", [300, 304, 400, 404, 410, 429, 500, 503])
async def test_anything_else_is_a_failure(status: int) -> None:
    head = b"HTTP/1.1 %d X\r\nContent-Length: 0\r\nRetry-After: 77\r\n\r\n" % status
    async with receiving(head) as receiver:
        outcome = await post(receiver.url)
    assert (outcome.status, outcome.error) == (status, f"status {status}")
    assert outcome.retry_after_seconds == 77


@cases("status", [301, 302, 303, 307, 308])
async def test_no_redirection_is_followed(status: int) -> None:
    async with receiving() as secret:
        head = b"HTTP/1.1 %d X\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n"
        async with receiving(head % (status, secret.url.encode())) as receiver:
            outcome = await post(receiver.url)
        assert outcome.error == f"status {status}"
        assert secret.connections == 0


async def test_failures_are_classes(tmp_path: Path) -> None:
    with closed_port() as port:
        assert (await post(f"http://127.0.0.1:{port}/")).error == "refused"
    names = Names([])
    assert (await post("https://nowhere.example/", names=names)).error == "name not found"
    assert (await post("http://127.0.0.1:1/", policy=Policy())).error == "not allowed"
    async with receiving(b"") as silent:
        assert (await post(silent.url)).error == "broken off"
    async with receiving(b"SSH-2.0-OpenSSH\r\n") as other:
        assert (await post(other.url)).error == "no HTTP"
    async with receiving(tls=make_certificate(tmp_path).server) as unknown:
        outcome = await post(f"https://127.0.0.1:{unknown.port}/")
    assert outcome.error == "tls"
    assert unknown.requests == []


async def test_tls_with_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=certificate.path)
    async with receiving(tls=certificate.server) as receiver:
        names = Names(["127.0.0.1"])
        good = await post(f"https://localhost:{receiver.port}/", tls=trusting, names=names)
        wrong = await post(f"https://other.example:{receiver.port}/", tls=trusting, names=names)
    assert (good.error, wrong.error) == ("", "tls")
    assert len(receiver.requests) == 1


async def test_an_answer_that_does_not_come_is_waited_for_within_a_bound() -> None:
    bounds = SendingBounds(attempt_seconds=0.2)
    async with receiving(is_held=True) as receiver:
        assert (await post(receiver.url, bounds=bounds)).error == "timed out"

    class Silent(Names):
        async def resolve(self, name: str, asker: object = None) -> list[Address]:
            raise LookupTimedOutError(name)

    assert (await post("https://a.example/", names=Silent([]))).error == "timed out"


async def test_little_of_an_answer_is_read_and_less_is_kept() -> None:
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"a\0" * 100_000
    async with receiving(endless) as receiver:
        outcome = await post(receiver.url)
    assert outcome.error == ""
    assert outcome.answer == "a\N{REPLACEMENT CHARACTER}" * 256


async def test_no_proxy_and_no_credentials_of_this_machine_are_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login operator password secret\n")
    netrc.chmod(0o600)
    async with receiving() as proxy, receiving() as receiver:
        monkeypatch.setenv("NETRC", str(netrc))
        monkeypatch.setenv("http_proxy", proxy.url)
        assert (await post(receiver.url)).error == ""
    assert proxy.connections == 0
    assert b"authorization" not in receiver.requests[0].lower()


def test_when_to_come_back() -> None:
    assert retry_after("120", 0) == 120
    assert retry_after("Thu, 01 Jan 1970 00:20:00 GMT", 1_000) == 200
    assert retry_after("Thu, 01 Jan 1970 00:00:00 GMT", 1_000) == 0
    for nonsense in ("", "soon", "-5", "1.5", "\u0661"):
        assert retry_after(nonsense, 0) == 0
    assert retry_after("9" * 400, 0) == 999_999_999


# --- only destinations that sessions may reach -----------------------------------------------

# Each leads to this machine or into a network that is not the internet; a server listens at the
# port of all of them, on every address of this machine.
LITERALS = [
    "127.0.0.1",
    "127.0.0.2",
    "127.1",
    "127.0.1",
    "0177.0.0.1",
    "0x7f.0.0.1",
    "0x7f000001",
    "2130706433",
    "017700000001",
    "0.0.0.0",
    "0",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "169.254.169.254",
    "169.254.170.2",
    "2852039166",
    "0xa9fea9fe",
    "168.63.129.16",
    "161.26.0.1",
    "166.8.0.1",
    "172.16.0.1",
    "172.31.255.254",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "[::]",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[::127.0.0.1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::ffff:169.254.169.254]",
    "[::ffff:10.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",
    "[2002:a9fe:a9fe::1]",
    "[2001:0:4136:e378:8000:63bf:80ff:fffe]",
    "[fd00:ec2::254]",
    "[fc00::1]",
    "[fe80::1]",
    "[fec0::1]",
    "[ff02::1]",
    "[100::1]",
    "[2001:db8::1]",
    "[3fff::1]",
    "[5f00::1]",
]
# Addresses of a name; a name is one target, however many of these it says in turn.
NAMES = [
    ["127.0.0.1"],
    ["::1"],
    ["::ffff:127.0.0.1"],
    ["64:ff9b::7f00:1"],
    ["169.254.169.254"],
    ["10.0.0.1", "127.0.0.1", "::1"],
]


@pytest.fixture
async def everywhere() -> AsyncIterator[Receiver]:
    """A server on every address of this machine, of both families."""
    receiver = Receiver()
    listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    server = await asyncio.start_server(receiver.serve, sock=listener)
    receiver.port = listener.getsockname()[1]
    yield receiver
    server.close()


async def test_no_hostile_literal_is_reached(everywhere: Receiver) -> None:
    resolver, policy = DnsResolver(), Policy(is_own=OwnAddresses())
    sender = sender_of(names=resolver, policy=policy)
    try:
        for literal in LITERALS:
            outcome = await sender.post(attempt_at(f"http://{literal}:{everywhere.port}/"))
            assert outcome.error in ("not allowed", "name not found", "not a URL"), literal
    finally:
        await resolver.close()
    assert everywhere.connections == 0


async def test_no_hostile_name_is_reached(everywhere: Receiver) -> None:
    for answer in NAMES:
        names = Names(answer)
        url = f"http://rebinding.example:{everywhere.port}/"
        assert (await post(url, names=names, policy=Policy())).error == "not allowed"
        assert names.asked == ["rebinding.example"]
    assert everywhere.connections == 0


async def test_a_name_that_leads_elsewhere_later_is_judged_by_where_it_leads_then(
    everywhere: Receiver,
) -> None:
    names = Names(["192.0.2.7"], ["127.0.0.1"])
    policy = Policy(allow=("192.0.2.0/24",), blocked_ports=())
    sender = sender_of(names=names, policy=policy)
    await names.resolve("rebinding.example")  # as a check at the creation of an endpoint does
    outcome = await sender.post(attempt_at(f"http://rebinding.example:{everywhere.port}/"))
    assert outcome.error == "not allowed"
    assert everywhere.connections == 0


async def test_this_machines_own_address_is_not_reached(everywhere: Receiver) -> None:
    judged: list[Address] = []

    def is_own(address: Address) -> bool:
        judged.append(address)
        return True

    sender = sender_of(policy=Policy(is_own=is_own))
    outcome = await sender.post(attempt_at(f"http://93.184.216.34:{everywhere.port}/"))
    assert outcome.error == "not allowed"
    assert judged == [ip_address("93.184.216.34")]


async def test_a_blocked_port_is_not_reached() -> None:
    async with receiving() as receiver:
        policy = Policy(allow=LOOPBACK, blocked_ports=(receiver.port,))
        assert (await post(receiver.url, policy=policy)).error == "not allowed"
    assert receiver.connections == 0


def test_the_table_has_sixty_targets() -> None:
    assert len(LITERALS) + len(NAMES) >= 60


# --- sending due deliveries ------------------------------------------------------------------


async def endpoint(market: Market, user_id: str, url: str) -> Secret:
    # As a demonstration allows it.
    market.webhooks._terms = market.webhooks._terms.__class__(allows_loopback=True)
    return await market.webhooks.create(user_id, url=url, types=["*"], description="")


async def test_a_due_delivery_is_sent_and_written_down(market: Market) -> None:
    me = await market.person()
    sender = sender_of(market)
    async with receiving() as receiver:
        made = await endpoint(market, me, receiver.url)
        await market.webhooks.test(me, made.endpoint.id)
        await sender.look()
        await sender.settled()
    [request] = receiver.requests
    head, _, body = request.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    assert int(headers["webhook-timestamp"]) == market.clock.seconds()
    receiver_side = Webhook(made.secret)
    # The library compares with the clock of the machine, which tests do not set.
    receiver_side._Webhook__verify_timestamp = lambda _: market_time(market)  # type: ignore[attr-defined]
    assert receiver_side.verify(body, headers)["type"] == "test.ping"
    [row] = await market.webhooks.deliveries(
        me, made.endpoint.id, status="delivered", before="", limit=5
    )
    assert (row.last_status, row.attempts) == (200, 1)


async def test_an_endpoint_has_a_bound_and_others_are_served_meanwhile(market: Market) -> None:
    me, other = await market.person(), await market.person()
    sender = sender_of(market)
    async with receiving(is_held=True) as slow, receiving() as quick:
        busy = await endpoint(market, me, slow.url)
        for _ in range(ATTEMPTS_PER_ENDPOINT + 3):
            await market.webhooks.test(me, busy.endpoint.id)
        quiet = await endpoint(market, other, quick.url)
        await market.webhooks.test(other, quiet.endpoint.id)
        await sender.look()
        await sender.look()
        await reached(lambda: len(quick.requests) == 1)
        await reached(lambda: len(slow.requests) == ATTEMPTS_PER_ENDPOINT)
        await sender.look()
        assert slow.connections == ATTEMPTS_PER_ENDPOINT
        slow.released.set()
        await sender.settled()
        await sender.look()
        await sender.settled()
        assert len(slow.requests) == ATTEMPTS_PER_ENDPOINT + 3


async def test_a_delivery_that_waits_for_an_attempt_does_not_wait_for_the_next_look(
    market: Market,
) -> None:
    me = await market.person()
    sender = sender_of(market, bounds=PATIENT)
    async with receiving() as receiver:
        mine = await endpoint(market, me, receiver.url)
        for _ in range(5 * ATTEMPTS_PER_ENDPOINT):
            await market.webhooks.test(me, mine.endpoint.id)
        await sender.look()
        await sender.settled()
    assert len(receiver.requests) == 5 * ATTEMPTS_PER_ENDPOINT


async def test_an_attempt_that_ends_during_a_query_keeps_no_delivery_waiting(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = await market.person()
    sender = sender_of(market, bounds=PATIENT)
    ask = market.webhooks.due

    async def answer_late(*, but: Collection[str], **others: Any) -> list[DueRow]:
        rows = await ask(but=but, **others)
        if but:  # the attempts that kept others out are over when the answer comes
            await sender.settled()
        return rows

    monkeypatch.setattr(market.webhooks, "due", answer_late)
    async with receiving() as receiver:
        mine = await endpoint(market, me, receiver.url)
        for _ in range(2 * ATTEMPTS_PER_ENDPOINT):
            await market.webhooks.test(me, mine.endpoint.id)
        await sender.look()
        await sender.settled()
    assert len(receiver.requests) == 2 * ATTEMPTS_PER_ENDPOINT


async def test_one_user_s_events_reach_a_host_at_a_pace(market: Market) -> None:
    me, other = await market.person(), await market.person()
    sender = sender_of(market)
    sender.pace = HostPace(per_second=20, burst=4)
    async with receiving() as busy:
        for number in range(2):
            mine = await endpoint(market, me, f"{busy.url}/{number}")
            for _ in range(6):
                await market.webhooks.test(me, mine.endpoint.id)
        began = monotonic()
        while len(busy.requests) < 13:  # one is about the second endpoint
            await sender.look()
        assert monotonic() - began >= (13 - 4 - 1) / 20
        theirs = await endpoint(market, other, busy.url)
        await market.webhooks.test(other, theirs.endpoint.id)
        await sender.look()
        await sender.settled()
        assert len(busy.requests) == 14


async def test_an_endpoint_that_is_disabled_while_an_attempt_waits_gets_nothing(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = await market.person()
    sender = sender_of(market)
    sender.pace = HostPace(per_second=1, burst=1)
    async with receiving() as receiver:
        mine = await endpoint(market, me, receiver.url)
        for _ in range(2):
            await market.webhooks.test(me, mine.endpoint.id)
        waiting = asyncio.Event()
        delay = sender.pace.delay

        def noted(user_id: str, host: str) -> float:
            seconds = delay(user_id, host)
            if seconds:
                waiting.set()
            return seconds

        monkeypatch.setattr(sender.pace, "delay", noted)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not waiting.is_set():
                await sender.look()
        await market.webhooks.change(me, mine.endpoint.id, is_enabled=False)
        await sender.settled()
        assert len(receiver.requests) == 1
        assert await market.webhooks.due(but=(), limit=9) == []


async def test_an_endpoint_that_fills_the_window_of_due_deliveries_hides_no_other(
    market: Market,
) -> None:
    market.webhooks.bounds = QueueBounds(turns=10)
    me, other = await market.person(), await market.person()
    sender = sender_of(market, bounds=SendingBounds(attempts_max=8))
    async with receiving(is_held=True) as slow, receiving() as quick:
        for number in range(3):
            mine = await endpoint(market, me, f"{slow.url}/{number}")
            for _ in range(5):
                await market.webhooks.test(me, mine.endpoint.id)
        market.clock.now += 1
        theirs = await endpoint(market, other, quick.url)
        await market.webhooks.test(other, theirs.endpoint.id)
        await sender.look()
        await reached(lambda: len(quick.requests) == 1)
        slow.released.set()
        await sender.settled()


async def test_an_endpoint_that_never_answers_hides_no_other(
    market: Market,
) -> None:
    """Its deliveries wait for longer than those of others, and one attempt is under way."""
    market.webhooks.bounds = QueueBounds(turns=10)
    me, other = await market.person(), await market.person()

    async def happen(tx: Transaction) -> None:
        for _ in range(12):
            await event_log.record(tx, market.context, me, DeployFinished("d"))

    sender = sender_of(market)
    async with receiving(is_held=True) as slow, receiving() as quick:
        await endpoint(market, me, slow.url)
        await market.store.write(happen)
        market.clock.now += 1
        theirs = await endpoint(market, other, quick.url)
        await market.webhooks.test(other, theirs.endpoint.id)
        await sender.look()
        await sender.look()
        await reached(lambda: len(quick.requests) == 1)
        assert slow.connections <= 1
        slow.released.set()
        await sender.settled()


def market_time(market: Market) -> datetime:
    return datetime.fromtimestamp(market.clock.seconds(), UTC)


async def reached(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not happened():
            await asyncio.sleep(0.01)


async def test_a_delivery_that_is_cut_off_at_the_end_is_sent_again(market: Market) -> None:
    me = await market.person()
    async with receiving(is_held=True) as receiver:
        made = await endpoint(market, me, receiver.url)
        await market.webhooks.test(me, made.endpoint.id)
        first = sender_of(market, bounds=SendingBounds(grace_seconds=0.05))
        await first.look()
        await reached(lambda: len(receiver.requests) == 1)
        await first.close()
        await first.look()  # a sender that is closed begins nothing
        second = sender_of(market)
        await second.look()
        await reached(lambda: len(receiver.requests) == 2)
        receiver.released.set()
        await second.settled()
    ids = {
        line for each in receiver.requests for line in each.split(b"\r\n") if b"webhook-id" in line
    }
    assert len(ids) == 1
    [row] = await market.webhooks.deliveries(me, made.endpoint.id, status="", before="", limit=5)
    assert (row.status, row.attempts) == ("delivered", 1)
