"""The chunks of a stream under TLS, in any pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxyctl.protocol.secure import CHUNK_MAX_BYTES, END, ChunkError, ChunkReader, chunked


def read(reader: ChunkReader, data: bytes, size: int) -> bytes:
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(bytes(part) for each in pieces for part in reader.receive_data(each))


@given(st.lists(st.binary(max_size=300)), st.integers(1, 700))
def test_a_stream_in_any_pieces_is_that_stream_and_ends(parts: list[bytes], size: int) -> None:
    reader = ChunkReader()
    data = b"".join(map(chunked, parts))
    assert read(reader, data, size) == b"".join(parts)
    assert not reader.has_ended
    assert read(reader, END, 1) == b""
    assert reader.has_ended


def test_a_large_part_goes_in_several_chunks() -> None:
    data = bytes(3 * CHUNK_MAX_BYTES + 1)
    assert len(chunked(data)) == len(data) + 4 * len(END)
    assert read(ChunkReader(), chunked(data), 10_000) == data


def test_nothing_may_come_behind_the_end() -> None:
    reader = ChunkReader()
    with pytest.raises(ChunkError):
        read(reader, END + b"x", 3)


@given(st.binary(max_size=500))
def test_any_bytes_are_a_stream_or_an_error(data: bytes) -> None:
    reader = ChunkReader()
    try:
        assert len(read(reader, data, 7)) <= len(data)
    except ChunkError:
        assert reader.has_ended
