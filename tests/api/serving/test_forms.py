"""Forms with files: parsed as declared, bounded during the parsing, refused with a reason."""

import asyncio
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from multipart import PushMultipartParser
from support.base.cases import cases
from support.base.waiting import until
from support.daemons.bounded import api_bounds, bounded
from support.daemons.service import Service, running_in
from support.market.pictures import jpeg, natural

from api.assistant.assistant import AnalyzeForm
from api.http.limits import BodyPace
from api.serving import forms
from api.serving.forms import READING, Uploads
from market.base.errors import Code, MarketError

ANALYZE = "/api/assistant/analyze-image"
PHOTO = jpeg(natural(1, (64, 48)))
BOUNDARY = "frontier"
GRACE_SECONDS = 0.5
QUICK_SHUTDOWN = api_bounds(shutdown_seconds=0.1)
KIND = f"multipart/form-data; boundary={BOUNDARY}"


def part(name: str, content: bytes, more: str = "") -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + content + b"\r\n"


FILE = part("file", PHOTO, '; filename="a.jpg"')
END = f"--{BOUNDARY}--\r\n".encode()


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Tell how much memory was taken at most since this began."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def send(service: Service, body: object, kind: str = KIND) -> tuple[int, str]:
    """Send a body, all at once or piece by piece; return the status and the code."""
    async with service.http.post(
        service.url + ANALYZE, data=body, headers={"Content-Type": kind}
    ) as response:
        answer = await response.json()
        return response.status, answer.get("error", {}).get("code", "")


async def test_a_form_is_read_however_it_is_cut(service: Service) -> None:
    body = part("mode", b"goodness") + FILE + part("lang", b"ko") + END

    async def pieces():
        for start in range(0, len(body), 7):
            yield body[start : start + 7]

    assert await send(service, body) == (200, "")
    assert await send(service, pieces()) == (200, "")
    assert await send(service, body, KIND.replace(BOUNDARY, f'"{BOUNDARY}"').upper()) == (
        400,
        "invalid_field",
    )
    quoted = f'Multipart/Form-Data; charset=utf-8; Boundary="{BOUNDARY}"'
    assert await send(service, body, quoted) == (200, "")


@cases(
    "body",
    [
        b"",
        b"no form",
        END,
        FILE,
        FILE[:-30],
        FILE.replace(b"Content-Disposition", b"Content-Nonsense") + END,
        FILE.replace(b'name="file"', b"") + END,
        FILE + part("lang", b"\xff\xfe") + END,
        b"".join(part(f"f{number}", b"") for number in range(40)) + FILE + END,
        f"--{BOUNDARY}\r\nX: {'y' * 10_000}\r\n\r\n\r\n".encode() + END,
    ],
)
async def test_a_body_that_is_no_form_is_refused(service: Service, body: bytes) -> None:
    assert await send(service, body) == (400, "invalid_field")


@pytest.mark.parametrize(
    ("twice", "field"),
    [
        (FILE + FILE, "file"),
        (FILE + part("lang", b"ko") + part("lang", b"en"), "lang"),
        (FILE + part("mode", b"") + part("mode", b""), "mode"),
    ],
    ids=["file", "lang", "empty"],
)
async def test_a_field_that_is_there_twice_is_refused(
    service: Service, twice: bytes, field: str
) -> None:
    headers = {"Content-Type": KIND}
    answer = await service.call("POST", ANALYZE, raw=twice + END, headers=headers)
    assert (answer.status, answer.code, answer.field) == (400, "invalid_field", field)
    others = FILE + part("other", b"1") + part("other", b"2")
    assert await send(service, others + END) == (200, "")


@pytest.mark.parametrize(
    "kind", ["application/json", "text/plain", "multipart/mixed; boundary=frontier", "", ";"]
)
async def test_another_type_is_refused(service: Service, kind: str) -> None:
    assert await send(service, FILE + END, kind) == (415, "unsupported_media_type")
    answer = await service.call("POST", ANALYZE, raw=b"{}", headers={"Content-Type": kind})
    assert answer.body["error"]["message"].endswith(" Content-Type: multipart/form-data.")


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary="])
async def test_a_form_needs_a_boundary(service: Service, kind: str) -> None:
    assert await send(service, FILE + END, kind) == (400, "invalid_field")


async def test_the_first_bytes_too_many_end_it(tmp_path: Path) -> None:
    sent = 0

    async def endless():
        nonlocal sent
        yield FILE[:200]
        while True:
            sent += 65_536
            yield bytes(65_536)

    async with running_in(
        tmp_path, bounds=QUICK_SHUTDOWN, assistant={"photo_max_bytes": 20_000}
    ) as service:
        assert await send(service, FILE + END) == (200, "")
        large = part("file", PHOTO + bytes(20_001 - len(PHOTO)))
        assert await send(service, large + END) == (400, "photo_too_large")
        assert await send(service, bytes(100_000)) == (413, "body_too_large")
        assert await send(service, endless()) == (413, "body_too_large")
    assert sent < 20_000_000


@pytest.mark.parametrize(
    "bounds",
    [
        api_bounds(body=BodyPace(grace_seconds=0.05)),
        api_bounds(body=BodyPace(timeout_seconds=0.05)),
    ],
    ids=["grace", "timeout"],
)
async def test_a_body_that_does_not_come_is_not_waited_for(service: Service) -> None:
    gone = asyncio.Event()

    async def stuck():
        yield FILE[:100]
        await gone.wait()

    assert await send(service, stuck()) == (408, "request_timeout")
    gone.set()


@bounded(api_bounds(body=BodyPace(grace_seconds=0.1, bytes_per_second_min=1000)))
async def test_a_body_that_trickles_is_not_waited_for(service: Service) -> None:
    """However long it would go on: each byte extends the time by less than its own delay."""
    sent = 0

    async def trickling():
        nonlocal sent
        while sent < 10_000:
            sent += 1
            yield FILE[sent - 1 : sent]
            await asyncio.sleep(0.01)

    assert await send(service, trickling()) == (408, "request_timeout")
    assert sent < len(FILE)


@bounded(api_bounds(body=BodyPace(grace_seconds=GRACE_SECONDS, bytes_per_second_min=1)))
async def test_a_body_that_keeps_coming_is_waited_for(service: Service) -> None:
    grace, pieces = GRACE_SECONDS, 12
    body = FILE + END
    size = len(body) // pieces + 1
    assert size > grace, "each piece buys more time than it takes"

    async def slow():
        for start in range(0, len(body), size):
            yield body[start : start + size]
            await asyncio.sleep(1.5 * grace / pieces)  # its own pace, beyond the grace in all

    assert await send(service, slow()) == (200, "")


async def test_a_client_that_asks_first_gets_continue(service: Service) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.api_port)
    body = FILE + END
    head = (
        f"POST {ANALYZE} HTTP/1.1\r\nHost: x\r\nContent-Type: {KIND}\r\nExpect: 100-continue\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode())
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()
    await writer.wait_closed()


async def test_the_forms_in_memory_are_bounded() -> None:
    uploads = Uploads(replace(READING, total=3, reserved=0, per_caller=2))
    leave = asyncio.Event()
    held: list[str] = []

    async def hold(client: str) -> None:
        async with uploads.slot(client):
            held.append(client)
            await leave.wait()

    tasks = [asyncio.create_task(hold(client)) for client in "aaaabb"]
    await until(lambda: len(held) == 3)
    assert sorted(held) == ["a", "a", "b"]
    leave.set()
    await asyncio.gather(*tasks)
    assert len(held) == 6


def test_a_form_takes_the_memory_that_is_documented() -> None:
    """A file grows with an eighth of itself to spare, and is copied twice when it is whole."""
    size = 4_000_000
    fields = forms._Fields(AnalyzeForm)
    head, tail = FILE.split(PHOTO)
    with PushMultipartParser(BOUNDARY) as parser, traced() as peak:
        for piece in (head, *[bytes(65_536)] * (size // 65_536)):
            for event in parser.parse(piece):
                fields.take(event)
        assert peak() <= size * 9 // 8 + 300_000
        for event in parser.parse(tail + END):
            fields.take(event)
        assert peak() <= size * 25 // 8 + 300_000
    assert len(fields.values["file"]) == size // 65_536 * 65_536


async def test_some_places_are_kept_for_users_that_are_logged_in() -> None:
    uploads = Uploads(replace(READING, total=4, reserved=2, per_caller=2), waiting_seconds=0.05)

    async def is_let_in(client: str, user_id: str = "") -> bool:
        try:
            await held.enter_async_context(uploads.slot(client, user_id))
        except MarketError:
            return False
        return True

    async with AsyncExitStack() as held:
        assert [await is_let_in(client) for client in "abc"] == [True, True, False]
        assert await is_let_in("a", "ann")
        assert not await is_let_in("a", "ben")  # the third of that network
        assert await is_let_in("b", "ann")
        assert not await is_let_in("d", "ann")  # the third of hers, and the fifth in all
    async with AsyncExitStack() as held:
        assert [await is_let_in(client, "ann") for client in "abc"] == [True, True, False]


async def test_addresses_of_one_ipv6_network_are_one_client(tmp_path: Path) -> None:
    settings = {
        "api": {"trusted_proxies": ["127.0.0.0/8"]},
        "assistant": {"requests_per_minute": 1},
    }
    async with running_in(tmp_path, **settings) as service:
        for address, status in (
            ("2001:db8:1:2::1", 200),
            ("2001:db8:1:2:ffff::2", 429),
            ("2001:db8:1:3::1", 200),
            ("192.0.2.1", 200),
            ("192.0.2.2", 200),
            ("::ffff:192.0.2.1", 429),
        ):
            answer = await service.call(
                "POST",
                "/api/assistant/chat",
                {"message": "hi"},
                headers={"X-Forwarded-For": address},
            )
            assert answer.status == status, address


async def test_a_request_that_waits_too_long_or_behind_too_many_is_put_off() -> None:
    uploads = Uploads(replace(READING, total=1, reserved=0, queue=1), waiting_seconds=0.5)

    async def refusal() -> Code:
        with pytest.raises(MarketError) as caught:
            async with uploads.slot("b"):
                pass
        return caught.value.code

    async with uploads.slot("a"):
        assert await refusal() is Code.TOO_BUSY
        first = asyncio.create_task(refusal())
        await asyncio.sleep(0)
        assert await refusal() is Code.TOO_BUSY
        assert not first.done(), "at once, and not after the time that one waits"
        assert await first is Code.TOO_BUSY
    async with uploads.slot("b"):
        pass
