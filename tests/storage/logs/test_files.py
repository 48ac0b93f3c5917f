"""Logs as files: the beginning and the end are kept, and no power failure makes one of it up."""

import os
import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from support.base.brief import examples
from support.base.memory import room

from storage.logs import files as module
from storage.logs.files import Attempt, Extent, LogFiles, Part

ONE = Attempt("01900000-0000-7000-8000-0000000000ab", 1)
TWO = Attempt("01900000-0000-7000-8000-0000000000ab", 2)
SEGMENT = 64
KEEP = 3 * SEGMENT

small_files = partial(LogFiles, segment_bytes=SEGMENT)


def content(size: int, start: int = 0) -> bytes:
    """Return bytes of a stream that are different wherever they stand."""
    first, last = start // 4, (start + size) // 4 + 1
    numbers = b"".join(number.to_bytes(4, "big") for number in range(first, last))
    return numbers[start - first * 4 :][:size]


def segments(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("out-*"))


def test_the_beginning_and_the_end_are_kept(tmp_path: Path) -> None:
    files = small_files(tmp_path, keep_bytes=KEEP)
    size = 20 * SEGMENT + 10
    for at in range(0, size, 37):
        files.write(ONE, "out", at, content(min(37, size - at), at))
    extent = files.extent(ONE, "out")
    assert extent.size == size
    (head_start, head_end), (tail_start, tail_end) = extent.kept
    assert (head_start, tail_end) == (0, size)
    assert head_end >= KEEP
    assert tail_end - tail_start >= KEEP
    assert sum(each.stat().st_size for each in segments(tmp_path)) <= 2 * KEEP + 2 * SEGMENT
    assert files.kept_bytes(ONE) == sum(each.stat().st_size for each in segments(tmp_path))
    assert files.read(ONE, "out", 0, 10_000) == Part(0, content(head_end), size)
    assert files.read(ONE, "out", head_end, 10_000) == Part(
        tail_start, content(size - tail_start, tail_start), size
    )
    assert files.read(ONE, "out", size - 3, 10).data == content(3, size - 3)
    assert files.read(ONE, "out", size, 10) == Part(size, b"", size)
    assert files.read(ONE, "err", 0, 10) == Part(0, b"", 0)


def test_only_the_owner_reads_a_log_and_it_can_be_removed(tmp_path: Path) -> None:
    files = small_files(tmp_path / "logs", keep_bytes=KEEP)
    files.write(ONE, "out", 0, b"first")
    files.write(TWO, "out", 0, b"second")
    modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.rglob("*")}
    assert set(modes.values()) == {0o600, 0o700}
    files.remove(ONE)
    files.remove(ONE)
    assert files.extent(ONE, "out").size == 0
    assert files.read(TWO, "out", 0, 10).data == b"second"
    assert [each.name for each in (tmp_path / "logs" / "ab").iterdir()] == [f"{TWO.job_id}-2"]


@pytest.mark.parametrize("lost", [1, SEGMENT - 1, SEGMENT])
def test_bytes_behind_a_loss_do_not_count(tmp_path: Path, lost: int) -> None:
    """After a power failure: the file systems in use lose ends of files that were not synced."""
    files = small_files(tmp_path, keep_bytes=10 * SEGMENT)
    size = 4 * SEGMENT + 5
    files.write(ONE, "out", 0, content(size))
    os.truncate(segments(tmp_path)[2], SEGMENT - lost)
    left = 3 * SEGMENT - lost
    assert files.extent(ONE, "out").size == left
    assert files.recover(ONE, "out") == left
    files.write(ONE, "out", left, content(size - left, left))
    assert files.read(ONE, "out", 0, 10_000) == Part(0, content(size), size)


def test_parts_that_were_cut_out_stay_so_with_other_settings(tmp_path: Path) -> None:
    size = 30 * SEGMENT
    small_files(tmp_path, keep_bytes=KEEP).write(ONE, "out", 0, content(size))
    for keep in (10 * SEGMENT, SEGMENT):
        files = small_files(tmp_path, keep_bytes=keep)
        assert files.recover(ONE, "out") == size
        part = files.read(ONE, "out", size - SEGMENT, SEGMENT)
        assert part.data == content(SEGMENT, size - SEGMENT)
    assert len(segments(tmp_path)) == 2


def test_a_reader_is_ahead_of_the_parts_that_are_cut_out_while_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = small_files(tmp_path, keep_bytes=SEGMENT)
    files.write(ONE, "out", 0, content(3 * SEGMENT))
    looked = module._extent

    def late(found: dict[int, int], segment_bytes: int) -> Extent:
        extent = looked(found, segment_bytes)
        monkeypatch.setattr(module, "_extent", looked)
        files.write(ONE, "out", 3 * SEGMENT, content(5 * SEGMENT, 3 * SEGMENT))
        return extent

    monkeypatch.setattr(module, "_extent", late)
    part = files.read(ONE, "out", SEGMENT, 10)
    assert part.offset >= 5 * SEGMENT
    assert part.data == content(10, part.offset)


def test_a_disk_is_not_filled(tmp_path: Path) -> None:
    files = small_files(tmp_path, keep_bytes=KEEP, reserve_bytes=2**62)
    with pytest.raises(OSError, match="No space left"):
        files.write(ONE, "out", 0, b"x")
    assert files.extent(ONE, "out").size == 0


class Model(RuleBasedStateMachine):
    """Two attempts with two streams each, and their model: any appends, crashes and losses.

    Devices send from the offset in the reply, from before it, or from behind it; a power failure
    takes the end of any segment that was not synced.
    """

    @initialize()
    def begin(self) -> None:
        # In memory: each step syncs a file, and a busy disk needs seconds for a sync.
        self.folder = tempfile.TemporaryDirectory(prefix="proxyd-logs-", dir=room())
        self.files = small_files(Path(self.folder.name), keep_bytes=KEEP)
        self.sizes = {(attempt, name): 0 for attempt in (ONE, TWO) for name in ("out", "err")}
        self.synced = dict.fromkeys(self.sizes, 0)

    keys = st.tuples(st.sampled_from([ONE, TWO]), st.sampled_from(["out", "err"]))

    @rule(key=keys, size=st.integers(1, 5 * SEGMENT), back=st.integers(0, 2 * SEGMENT))
    def append(self, key: tuple[Attempt, str], size: int, back: int) -> None:
        """As the service does it: overlapping bytes are skipped."""
        attempt, stream = key
        known = self.files.recover(attempt, stream)
        assert known == self.sizes[key]
        start = max(0, known - back)
        data = self.bytes_of(key, start, size)[known - start :]
        if data:
            self.files.write(attempt, stream, known, data)
            self.sizes[key] += len(data)

    @rule(key=keys, back=st.integers(0, 2 * SEGMENT), size=st.integers(1, SEGMENT))
    def replay(self, key: tuple[Attempt, str], back: int, size: int) -> None:
        """A write whose request was given up goes on in its thread; it changes nothing."""
        attempt, stream = key
        start = max(0, self.sizes[key] - back)
        kept = self.files.extent(attempt, stream).kept
        if kept and kept[-1][0] <= start:
            data = self.bytes_of(key, start, min(size, self.sizes[key] - start))
            self.files.write(attempt, stream, start, data)

    @rule(keep=st.integers(1, 6 * SEGMENT))
    def restart(self, keep: int) -> None:
        self.files = small_files(Path(self.folder.name), keep_bytes=keep)

    @rule(attempt=st.sampled_from([ONE, TWO]))
    def sync(self, attempt: Attempt) -> None:
        self.files.sync(attempt)
        for key in self.sizes:
            if key[0] == attempt:
                self.synced[key] = self.sizes[key]

    @rule(key=keys, which=st.integers(0, 20), lost=st.integers(1, SEGMENT))
    def lose_power(self, key: tuple[Attempt, str], which: int, lost: int) -> None:
        attempt, stream = key
        found = sorted(Path(self.folder.name).rglob(f"*-{attempt.number}/{stream}-*"))
        if not found:
            return
        file = found[which % len(found)]
        start = int(file.name.partition("-")[2]) * SEGMENT
        size = max(0, file.stat().st_size - lost, self.synced[key] - start)
        if size < file.stat().st_size:
            os.truncate(file, size)
            self.sizes[key] = min(self.sizes[key], start + size)
        assert self.sizes[key] >= self.synced[key]

    @invariant()
    def holds(self) -> None:
        for key, size in self.sizes.items():
            extent = self.files.extent(*key)
            assert extent.size == size
            offset = 0
            while offset < size:
                part = self.files.read(*key, offset, 100)
                assert part.size == size
                assert part.data == self.bytes_of(key, part.offset, len(part.data))
                if not part.data:
                    break
                offset = part.offset + len(part.data)
            assert offset == size

    def bytes_of(self, key: tuple[Attempt, str], start: int, size: int) -> bytes:
        salt = key[0].number * 2 + (key[1] == "err")
        return bytes((each + salt) % 256 for each in content(size, start))

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


def test_any_sequence_of_appends_crashes_and_losses() -> None:
    run_state_machine_as_test(
        Model, settings=settings(max_examples=examples(30), stateful_step_count=30, deadline=None)
    )
