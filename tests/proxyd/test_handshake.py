"""The states of a handshake and of a connection; `conformance` tests their behaviour."""

import asyncio
import re
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs
from support.base.cases import cases
from support.market.metering import grant_of

from proxyd import connection, handshake
from proxyd.access import Ending
from proxyd.counters import Counters
from proxyd.handshake import (
    LONG_READ_BYTES,
    PASSWORD_PORT,
    READ_BYTES,
    READS_PER_TURN,
    Client,
    Handshake,
    HandshakeServices,
)
from proxyd.loop.deadlines import Deadlines
from proxyd.loop.poller import GONE, READABLE, READS
from proxyd.loop.reactor import Reactor
from proxyd.metering.session import LiveSession
from proxyd.metering.tallies import Tallies
from proxyd.relay.closing import Closer
from proxyd.wire.events import Connect, Refusal, Request, ServerProtocol
from proxyd.wire.http import CHALLENGES_MAX, HEAD_MAX_BYTES
from proxyd.wire.wants import Wants, parse

if TYPE_CHECKING:
    from proxyd.access_records import Access

GREETING, CREDENTIALS = b"\x05\x01\x02", b"\x01\x04user\x04pass"
REQUEST = b"\x05\x01\x00\x01\x08\x08\x08\x08\x00\x50"


@cases(
    ("state", "arrows"),
    [
        (handshake.HandshakeState, handshake.TRANSITIONS),
        (connection.ConnectionState, connection.TRANSITIONS),
    ],
)
def test_every_state_has_its_arrows_and_none_leads_out_of_the_end(state: Any, arrows: Any) -> None:
    assert set(arrows) == set(state)
    assert arrows[state.CLOSED] == ()
    reached = {to for tos in arrows.values() for to in tos} | {state(0)}
    assert reached == set(state)


class Scene:
    """A handshake over a socket pair, with a meter whose answer the test gives."""

    def __init__(self, answer: object, port_index: int) -> None:
        loop = asyncio.get_running_loop()
        self.peer, sock = socket.socketpair()
        sock.setblocking(False)
        self.reactor = Reactor(loop, 0)
        self.deadlines: Deadlines[Handshake] = Deadlines(loop, 10.0)
        self.counters = Counters()
        self.answer = answer
        self.decide: object = None
        self.requests: list[Request] = []
        self.wants: list[Wants | None] = []
        self.usernames: list[bytes] = []
        self.left: list[Client] = []
        self.records: list[Access] = []
        services = HandshakeServices(
            reactor=self.reactor,
            closer=Closer(loop, self.reactor.poller),
            deadlines=self.deadlines,
            meter=self,
            tallies=Tallies(),
            counters=self.counters,
            requested=self._requested,
            over=self.left.append,
            record=self.records.append,
        )
        self.closer = services.closer
        client = Client(sock, "127.0.0.1", "127.0.0.1", port_index, 1, loop.time())
        self.handshake = Handshake(services, client)
        self.handshake.start()

    def admit(self, username: bytes, password: bytes, asker: str, decide: object) -> object:
        self.decide = decide
        self.usernames.append(username)
        return self.answer

    def admit_address(self, port_index: int, address: str, asker: str, decide: object) -> object:
        self.decide = decide
        return self.answer

    def prove(self, session: object, address: str) -> None:
        """Nothing is to be proved."""

    def _requested(
        self,
        client: Client,
        protocol: ServerProtocol,
        session: object,
        wants: Wants | None,
        request: Request,
        _: bool,
    ) -> None:
        self.requests.append(request)
        self.wants.append(wants)
        client.sock.close()

    def say(self, data: bytes) -> None:
        self.peer.send(data)
        self.handshake.ready(READS)

    def close(self) -> None:
        self.handshake.abort()
        self.closer.close_now()
        self.deadlines.close()
        self.reactor.close()
        self.peer.close()


def session(exit_: str = "") -> LiveSession:
    return LiveSession(structs.replace(grant_of(1000), exit=exit_), lambda _: None)


def login(username: bytes, password: bytes = b"pass") -> bytes:
    parts = (username, password)
    return b"\x01" + b"".join(bytes([len(each)]) + each for each in parts)


def tunnel(username: bytes) -> bytes:
    basic = b64encode(username + b":pass")
    return (
        b"CONNECT 8.8.8.8:443 HTTP/1.1\r\nHost: 8.8.8.8\r\n"
        b"Proxy-Authorization: Basic " + basic + b"\r\n\r\n"
    )


@pytest.fixture
async def scenes() -> Iterator[object]:
    made: list[Scene] = []

    def make(answer: object, port_index: int = PASSWORD_PORT) -> Scene:
        made.append(Scene(answer, port_index))
        return made[-1]

    yield make
    for scene in made:
        scene.close()


async def test_all_at_once_is_one_run_of_the_loop(scenes) -> None:
    bought = session()
    scene = scenes(bought)
    scene.say(GREETING + CREDENTIALS + REQUEST)
    assert [type(each) for each in scene.requests] == [Connect]
    assert scene.peer.recv(100) == b"\x05\x02\x01\x00"
    assert bought.connections == set(), "its successor joins the session"
    assert len(scene.deadlines) == 0
    assert scene.left == [], "who is handed over has not left"


@pytest.mark.parametrize("size", [READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, 2 + 1 + 2 * 255 + 13])
async def test_the_first_bytes_of_a_client_may_be_longer_than_a_read(scenes, size: int) -> None:
    scene = scenes(session())
    words = size - len(GREETING) - len(REQUEST) - 3
    name, password = bytes([words // 2]), bytes([words - words // 2])
    credentials = b"\x01" + name + b"u" * name[0] + password + b"p" * password[0]
    message = GREETING + credentials + REQUEST
    assert len(message) == size
    scene.say(message)
    assert [type(each) for each in scene.requests] == [Connect]


async def test_a_decision_that_comes_later_goes_on_where_it_stopped(scenes) -> None:
    scene = scenes(None)
    scene.say(GREETING + CREDENTIALS + REQUEST)
    assert scene.peer.recv(100) == b"\x05\x02"
    assert scene.requests == []
    scene.decide(session())
    assert scene.peer.recv(100) == b"\x01\x00"
    assert len(scene.requests) == 1


async def test_a_decision_that_comes_when_all_is_over_changes_nothing(scenes) -> None:
    scene, bought = scenes(None), session()
    scene.say(GREETING + CREDENTIALS + REQUEST)
    scene.handshake.timed_out()
    scene.decide(bought)
    assert bought.connections == set()
    assert scene.requests == []
    assert len(scene.left) == 1
    assert scene.counters.handshake_failures == {Ending.TIMED_OUT: 1}
    assert scene.records == [], "no client has shown credentials"


async def test_a_refusal_is_counted_and_sent(scenes) -> None:
    scene = scenes(Refusal.EXHAUSTED)
    scene.say(GREETING + CREDENTIALS)
    assert scene.peer.recv(100) == b"\x05\x02\x01\x02"
    assert scene.counters.handshake_failures == {"exhausted": 1}
    assert len(scene.left) == 1


async def test_an_admitted_client_that_sends_nothing_more_is_recorded(scenes) -> None:
    scene = scenes(session())
    scene.say(GREETING + CREDENTIALS)
    scene.handshake.timed_out()
    [record] = scene.records
    assert (record.session_id, record.host, record.port, record.reason) == (
        "session",
        "",
        0,
        "timed_out",
    )


# --- clients that say too much --------------------------------------------------------------------


FAR = 1 << 20  # empty lines that a client still has: more than these tests send
TURN_MAX_BYTES = (1 + READS_PER_TURN) * LONG_READ_BYTES


def never_ending(scene: Scene) -> Callable[[], int]:
    """Have a client send empty lines, with its limit far away.

    Returns:
        A function that returns the number of bytes that the handshake has read of them.
    """
    scene.say(b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n")
    assert scene.peer.recv(4096).startswith(b"HTTP/1.1 407 ")
    protocol = scene.handshake._protocol
    protocol._empty_lines = -FAR
    scene.peer.setblocking(False)
    assert scene.peer.send(b"\r\n" * (1 << 16)) > 2 * TURN_MAX_BYTES
    return lambda: 2 * (protocol._empty_lines + FAR)


async def test_a_client_that_says_a_lot_is_read_a_little_in_each_turn(scenes) -> None:
    scene = scenes(session())
    read = never_ending(scene)
    scene.handshake.ready(READABLE)
    first = read()
    assert READS_PER_TURN * LONG_READ_BYTES <= first <= TURN_MAX_BYTES
    scene.handshake.ready(READABLE)
    assert read() == first, "an event in its pause earns it no reads"
    turns = 0
    while scene.handshake._state is handshake.HandshakeState.PAUSED:
        before = read()
        await asyncio.sleep(0)
        assert read() - before <= TURN_MAX_BYTES
        turns += 1
    assert turns >= 2
    assert scene.handshake._state is handshake.HandshakeState.READING, "all is read"


@pytest.mark.parametrize("end", ["timed_out", "abort"])
async def test_a_client_in_its_pause_can_be_cut_and_is_read_no_more(scenes, end: str) -> None:
    scene = scenes(session())
    read = never_ending(scene)
    scene.handshake.ready(READABLE)
    getattr(scene.handshake, end)()
    before = read()
    await asyncio.sleep(0)
    assert read() == before
    assert len(scene.left) == 1
    assert len(scene.deadlines) == 0


async def test_a_client_that_hangs_up_in_its_pause_is_let_go(scenes) -> None:
    scene = scenes(session())
    never_ending(scene)
    scene.handshake.ready(READABLE)
    scene.handshake.ready(READABLE | GONE)
    await asyncio.sleep(0)
    assert scene.counters.handshake_failures == {Ending.CLIENT_LEFT: 1}


async def test_the_largest_head_of_a_client_takes_no_pause(scenes) -> None:
    scene = scenes(session())
    head = tunnel(b"user").removesuffix(b"\r\n") + b"X: "
    scene.say(head + b"x" * (HEAD_MAX_BYTES - len(head) - 4) + b"\r\n\r\n")
    assert [type(each) for each in scene.requests] == [Connect]


async def test_empty_lines_without_end_are_refused_in_the_first_turn(scenes) -> None:
    scene = scenes(session())
    scene.say(b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n")
    assert scene.peer.recv(4096).startswith(b"HTTP/1.1 407 ")
    scene.say(b"\r\n" * 10_000)
    assert scene.peer.recv(4096).startswith(b"HTTP/1.1 400 ")
    assert scene.counters.handshake_failures == {Ending.VIOLATION: 1}
    assert len(scene.left) == 1


async def test_requests_without_credentials_are_refused_in_the_end(scenes) -> None:
    scene = scenes(session())
    scene.say(b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000)
    answers = scene.peer.recv(65_536)
    assert answers.count(b"HTTP/1.1 407 ") == CHALLENGES_MAX
    assert scene.counters.handshake_failures == {Ending.VIOLATION: 1}


# --- wishes behind the user name -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("sold", "username", "wants"),
    [
        ("", b"user", None),
        ("", b"user-country-de", "country-de"),
        ("country-de", b"user", "country-de"),
        ("country-de", b"user-session-aB", "country-de-session-aB"),
        ("country-de", b"user-direct", "direct"),
    ],
)
@pytest.mark.parametrize("speaks_http", [False, True])
async def test_a_user_name_ends_at_its_first_hyphen_and_wishes_follow(
    scenes, sold: str, username: bytes, wants: str | None, speaks_http: bool
) -> None:
    scene = scenes(session(sold))
    scene.say(tunnel(username) if speaks_http else GREETING + login(username) + REQUEST)
    assert scene.usernames == [b"user"]
    assert scene.wants == [None if wants is None else parse(wants)]


@pytest.mark.parametrize("sold", ["", "country-de"])
async def test_without_a_password_the_sale_says_how_to_leave(scenes, sold: str) -> None:
    scene = scenes(session(sold), port_index=0)
    scene.say(b"\x05\x01\x00" + REQUEST)
    assert scene.wants == [parse(sold) if sold else None]


@pytest.mark.parametrize("comes_later", [False, True])
async def test_a_mistyped_wish_is_a_status_of_its_own_in_socks(scenes, comes_later: bool) -> None:
    bought = session()
    scene = scenes(None if comes_later else bought)
    scene.say(GREETING + login(b"user-ctry-de") + REQUEST)
    if comes_later:
        scene.decide(bought)
    assert scene.peer.recv(100) == b"\x05\x02\x01\x06"
    assert scene.requests == []
    assert bought.connections == set()
    assert scene.counters.handshake_failures == {Ending.PARAMETERS: 1}
    assert len(scene.left) == 1


async def test_a_mistyped_wish_is_named_in_http(scenes) -> None:
    scene = scenes(session())
    scene.say(tunnel(b"user-ctry-de"))
    answer = scene.peer.recv(4096).decode()
    assert answer.startswith("HTTP/1.1 400 Bad Request\r\n")
    said = "The parameter 'ctry' is not known; did you mean 'city' or 'country'?"
    assert f'\r\nProxy-Status: proxyd; error=http_request_error; details="{said}"\r\n' in answer
    assert answer.endswith(f"\r\n\r\n{said}\n")


@pytest.mark.parametrize("username", [b'user-a"b', b"user-a\\b", b"user-\xc3\xbc-\xc3\xa4"])
async def test_text_of_a_client_breaks_no_header(scenes, username: bytes) -> None:
    scene = scenes(session())
    scene.say(tunnel(username))
    [status] = [line for line in scene.peer.recv(4096).split(b"\r\n") if b"details" in line]
    assert re.fullmatch(rb'Proxy-Status: [a-z_; =]+="[ !#-\[\]-~]*"', status)


async def test_a_client_with_the_wrong_password_gets_no_error_about_wishes(scenes) -> None:
    scene = scenes(Refusal.WRONG)
    scene.say(GREETING + login(b"user-ctry-de"))
    assert scene.peer.recv(100) == b"\x05\x02\x01\x01"
