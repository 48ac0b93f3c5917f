"""A record that processes share is read whole, or as it was before."""

import os
import signal
from collections import Counter
from itertools import count

import pytest

from proxyd.ops.processes.shared_record import SharedRecord, TooLargeError

READS = 20_000


def test_it_is_empty_until_it_is_written_and_then_the_last_one() -> None:
    record = SharedRecord(16)
    assert record.read() == b""
    for content in (b"one", b"", b"a" * 16, b"four"):
        record.write(content)
        assert record.read() == content


def test_one_that_is_too_large_leaves_the_old_one() -> None:
    record = SharedRecord(16)
    record.write(b"old")
    with pytest.raises(TooLargeError):
        record.write(b"a" * 17)
    assert record.read() == b"old"


def test_bytes_that_a_forked_process_writes_are_read_here() -> None:
    record = SharedRecord(16)
    pid = os.fork()
    if pid == 0:
        record.write(b"from there")
        os._exit(0)
    os.waitpid(pid, 0)
    assert record.read() == b"from there"


def test_a_writer_that_dies_in_the_middle_leaves_the_one_before() -> None:
    record = SharedRecord(16)
    record.write(b"first")
    record.write(b"second")
    record._map[record._half_bytes + 20 : record._half_bytes + 22] = b"##"  # the half of the third
    assert record.read() == b"second"
    record._map[20:22] = b"##"
    assert record.read() == b""


def test_readers_meet_no_half_of_a_record() -> None:
    record = SharedRecord(4096)
    record.write(bytes(4096))
    pid = os.fork()
    if pid == 0:
        for number in count():
            record.write(bytes([number % 256]) * 4096)
    seen: Counter[bytes] = Counter()
    try:
        while seen.total() < READS or len(seen) <= 2:  # and it was written meanwhile
            read = record.read()
            assert read == read[:1] * len(read)
            seen[read[:1]] += 1
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    # Nothing is there only if the writer has written twice while this was read.
    assert seen[b""] < seen.total() / 2
