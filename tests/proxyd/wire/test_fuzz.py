"""Any bytes of clients, in any pieces: no exception, no pile of bytes, one meaning.

Bounded here; `make fuzz-wire` goes through a million conversations (PROXYD_FUZZ_HANDSHAKES), from
another start each time (PROXYD_FUZZ_START, which is printed). A failure tells its conversation: a
conversation that breaks a rule becomes one of the conversations in `test_socks5.py` or
`test_http.py`, by name.
"""

import asyncio
import os
import re

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser
from aiohttp.http_exceptions import BadHttpMethod, InvalidURLError
from support.clients.conversations import Conversation, Conversations
from support.clients.owner import Owner

from proxyd.wire.events import Associate, Authenticate, Connect, Identify, Violation
from proxyd.wire.http import HEAD_MAX_BYTES, Http, HttpState
from proxyd.wire.socks5 import Socks5

HANDSHAKES = int(os.environ.get("PROXYD_FUZZ_HANDSHAKES", "1000"))
START = int(os.environ.get("PROXYD_FUZZ_START", "0"))
SEGMENT_MAX_BYTES = 4096  # the size of one read
UNFINISHED_MAX_BYTES = 3 + 255 + 255  # of SOCKS5: the longest message, but for its last byte
ANSWERS_MAX_BYTES = 4096
BODY_MAX_BYTES = 1000

# A plain head as a target gets it: nothing in it could be read in two ways.
FORWARDED = re.compile(
    rb"[!-~]+ (?:/[!-~\x80-\xff]*|\*|\?[!-~\x80-\xff]*) HTTP/1\.[01]\r\n"
    rb"Host: [^\s\x00-\x1f\x7f]+\r\n"
    rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\r\n\x00]*\r\n)*\r\n"
)
HIDDEN = re.compile(rb"(?im)^(?:proxy-authorization|proxy-connection|keep-alive|host)[ \t]*:")
LENGTH = re.compile(rb"(?im)^content-length:[ \t]*(\d+)")


def said(conversation: Conversation, pieces: list[bytes]) -> tuple[object, ...]:
    """Return all results of a conversation, after checks of the rules for every moment."""
    owner = Owner(
        accept=conversation.accept,
        reach=conversation.reach,
        password_required=conversation.password_required,
    )
    for piece in pieces:
        owner.hear(piece)
        if owner.is_relaying or not owner.heard:
            continue
        kept = len(inner(owner)._buffer)
        if owner.is_over:
            assert kept == 0, "the end keeps bytes"
        elif isinstance(inner(owner), Http):
            assert kept <= HEAD_MAX_BYTES
        else:
            assert kept <= UNFINISHED_MAX_BYTES
    assert_in_order(owner)
    if not owner.is_relaying:
        return owner.events, owner.sent
    trailing, limit = owner.protocol.hand_over()
    if isinstance(inner(owner), Http):
        assert inner(owner).state is HttpState.ESTABLISHED
        if not owner.sent.endswith(b" 200 Connection established\r\n\r\n"):
            assert_forwarded(trailing, limit)
    return owner.events, owner.sent, trailing, limit


def inner(owner: Owner) -> Http | Socks5:
    protocol = owner.protocol
    assert isinstance(protocol, Http | Socks5)
    return protocol


def assert_in_order(owner: Owner) -> None:
    """Check that a client was identified before anything was done for it."""
    assert len(owner.sent) <= ANSWERS_MAX_BYTES
    kinds = [type(event) for event in owner.events]
    assert kinds in (
        [],
        [Violation],
        *([who] for who in (Authenticate, Identify)),
        *([who, then] for who in (Authenticate, Identify) for then in (Connect, Associate)),
        *([who, Violation] for who in (Authenticate, Identify)),
    ), kinds


def assert_forwarded(trailing: bytes, limit: int | None) -> None:
    """Check a target's bytes of a plain request: one head, without secrets, and its body."""
    head, end, body = trailing.partition(b"\r\n\r\n")
    assert FORWARDED.fullmatch(head + end), head
    lines = head.split(b"\r\n", 2)[2]
    assert HIDDEN.search(lines) is None, head
    if limit is not None:
        lengths = {int(each) for each in LENGTH.findall(lines)}
        assert len(body) + limit == (lengths.pop() if lengths else 0), head
        assert not lengths, head


def hold(conversation: Conversation) -> None:
    """Check one conversation, in its pieces and in pieces of the read size."""
    pieced = said(conversation, list(conversation.segments()))
    data = conversation.data
    starts = range(0, len(data), SEGMENT_MAX_BYTES)
    assert pieced == said(conversation, [data[at : at + SEGMENT_MAX_BYTES] for at in starts])


@pytest.mark.timeout(0)
def test_no_conversation_raises_piles_up_or_has_two_meanings() -> None:
    conversations = Conversations()
    for number in range(START, START + HANDSHAKES):
        conversation = conversations.number(number)
        try:
            hold(conversation)
        except Exception as error:
            error.add_note(f"conversation {number}: {conversation}")
            raise


def test_most_of_the_random_conversations_get_far() -> None:
    conversations = Conversations()
    outcomes = [
        said(conversation, list(conversation.segments()))
        for conversation in map(conversations.number, range(2_000))
    ]
    for kind in (Authenticate, Identify, Connect, Associate, Violation):
        found = sum(kind in map(type, outcome[0]) for outcome in outcomes)
        assert found > 20, f"{kind.__name__}: {found}"
    relayed = [outcome for outcome in outcomes if len(outcome) == 4]
    assert sum(outcome[3] is not None for outcome in relayed) > 20, "plain requests"
    assert len(relayed) > 200


class Unread(BaseProtocol):
    """The owner of a parser; it reads nothing."""

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Nothing was paused."""


async def test_another_parser_reads_one_request_and_its_whole_body() -> None:
    conversations = Conversations()
    loop = asyncio.get_running_loop()
    read = 0
    for number in range(START, START + HANDSHAKES):
        outcome = said(conversation := conversations.number(number), [conversation.data])
        if len(outcome) < 4 or not isinstance(limit := outcome[3], int) or limit > BODY_MAX_BYTES:
            continue
        parser = HttpRequestParser(
            Unread(loop), loop, 2**16, max_line_size=HEAD_MAX_BYTES, max_field_size=HEAD_MAX_BYTES
        )
        try:
            requests, _, behind = parser.feed_data(outcome[2] + bytes(limit))
        except (BadHttpMethod, InvalidURLError):  # it knows fewer methods, and only ASCII
            continue
        read += 1
        (request, body), *others = requests
        told = f"conversation {number}: {request}"
        assert (others, behind, body.is_eof()) == ([], b"", True), told
        assert not request.chunked, told
    assert read > HANDSHAKES / 100
