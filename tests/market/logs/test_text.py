"""Logs as text: safe for a terminal, and the same wherever the bytes were cut."""

from hypothesis import example, given
from hypothesis import strategies as st
from support.base.cases import cases

from market.logs.text import HELD_MAX_BYTES, text_of

SHOWN = {
    b"plain\ttext\r\n": "plain\ttext\r\n",
    b"\x1b[1;31mred\x1b[0m": "red",
    b"\x1b]0;a title\x07here": "here",
    b"\x1b]8;;https://example.com\x1b\\link\x1b]8;;\x1b\\": "link",
    b"\x1bPq#0;2\x1b\\after": "after",
    b"\x1b(Bset\x1bc\x1b7": "set",
    b"\x1b[2J\x1b[Hscreen": "screen",
    b"bell\x07 back\x08 null\x00 del\x7f": "bell back null del",
    "eight bits \x9b31m and \x85".encode(): "eight bits 31m and ",
    "café 한국어 🎉".encode(): "café 한국어 🎉",
    b"\xff\xfe": "\ufffd\ufffd",
    b"\x1b\x1b[31mx": "x",
    b"": "",
}


@cases(("data", "text"), SHOWN.items())
def test_characters_that_a_terminal_would_obey_are_left_out(data: bytes, text: str) -> None:
    assert text_of(data, is_last=True) == (text, len(data))


@cases(
    "begun",
    [b"\x1b", b"\x1b[", b"\x1b[1;3", b"\x1b]0;title", b"\x1b]0;t\x1b", b"\xe2\x82", b"\x1b("],
)
def test_an_incomplete_character_waits_for_the_rest(begun: bytes) -> None:
    assert text_of(b"x" + begun, is_last=False) == ("x", 1)
    text, taken = text_of(b"x" + begun, is_last=True)
    assert taken == 1 + len(begun)
    assert "\x1b" not in text


def test_a_sequence_without_end_is_not_waited_for() -> None:
    endless = b"\x1b]0;" + b"t" * HELD_MAX_BYTES
    text, taken = text_of(endless, is_last=False)
    assert taken == len(endless)
    assert "\x1b" not in text


PIECES = st.lists(
    st.sampled_from(
        [*SHOWN, b"\x1b", b"[", b"]", b"\\", b"\x07", b"\xe2", b"\x82", b"\xac", b"a\n"]
    )
)


@example([b"\xe2", b"\x1b(Bset"], [1, 3])
@example([b"\xe2", b"\x1b(B\x82\xac"], [5])
@given(PIECES, st.lists(st.integers(1, 7)))
def test_the_text_is_the_same_wherever_the_bytes_are_cut(
    pieces: list[bytes], sizes: list[int]
) -> None:
    data = b"".join(pieces)
    whole, _ = text_of(data, is_last=True)
    assert not set(whole) & {chr(each) for each in range(32)} - set("\t\n\r")
    text, offset, seen = "", 0, 0
    for size in [*sizes, len(data)]:
        seen = min(len(data), seen + size)
        part, taken = text_of(data[offset:seen], is_last=seen == len(data))
        text, offset = text + part, offset + taken
        if seen == len(data):
            break
    assert offset == len(data)
    assert text == whole
