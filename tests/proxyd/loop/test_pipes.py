"""Pipes are lent empty, never with another connection's bytes, and never above their limit."""

import errno
import gc
import os
from pathlib import Path

import pytest

from proxyd.loop import pipes
from proxyd.loop.pipes import IDLE_MAX_PIPES, WIDE_MAX_PIPES, WIDE_PIPE_BYTES, Pipe, PipePool


def open_descriptors() -> int:
    """Count the pipes of this process; pipes that earlier tests have dropped are closed before."""
    gc.collect()
    return sum(is_pipe(each) for each in Path("/proc/self/fd").iterdir())


def is_pipe(each: Path) -> bool:
    try:
        return str(each.readlink()).startswith("pipe:")
    except FileNotFoundError:  # the descriptor that lists them
        return False


def test_an_emptied_pipe_is_lent_again() -> None:
    pool = PipePool(10)
    pipe = pool.take()
    assert pipe is not None
    pool.give(pipe)
    assert pool.take() is pipe
    pool.give(pipe)
    pool.close()


def test_one_with_bytes_in_it_is_not() -> None:
    before = open_descriptors()
    pool = PipePool(10)
    pipe = pool.take()
    assert pipe is not None
    os.write(pipe.write_fd, b"somebody's")
    pipe.fill = 10
    pool.give(pipe)
    assert open_descriptors() == before
    other = pool.take()
    assert other is not None
    with pytest.raises(BlockingIOError):
        os.read(other.read_fd, 1)
    pool.give(other)
    pool.close()
    assert open_descriptors() == before


def test_no_more_than_the_limit_are_lent() -> None:
    pool = PipePool(3)
    lent = [pool.take() for _ in range(4)]
    assert [pipe is None for pipe in lent] == [False, False, False, True]
    assert pool.lent == 3
    for pipe in lent:
        if pipe is not None:
            pool.give(pipe)
    assert pool.lent == 0
    pool.close()


def test_few_are_kept_idle() -> None:
    before = open_descriptors()
    pool = PipePool(100)
    lent = [pool.take() for _ in range(IDLE_MAX_PIPES + 5)]
    for pipe in lent:
        assert pipe is not None
        pool.give(pipe)
    assert open_descriptors() == before + 2 * IDLE_MAX_PIPES
    pool.close()
    assert open_descriptors() == before


def test_without_descriptors_there_is_no_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    pool = PipePool(10)
    monkeypatch.setattr(pipes.os, "pipe2", refuse)
    assert pool.take() is None
    assert pool.lent == 0


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOMEM])
def test_a_pipe_that_may_not_grow_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(pipes.fcntl, "fcntl", refuse)
    pipe = Pipe(is_wide=True)
    monkeypatch.undo()
    assert pipe.capacity < WIDE_PIPE_BYTES
    pipe.close()


def test_wide_ones_are_few_and_kept_apart() -> None:
    pool = PipePool(WIDE_MAX_PIPES + 2)
    lent = [pool.take(wide=True) for _ in range(WIDE_MAX_PIPES + 1)]
    wide, narrow = lent[0], lent[-1]
    assert wide is not None
    assert narrow is not None
    assert wide.capacity == WIDE_PIPE_BYTES
    assert narrow.capacity < WIDE_PIPE_BYTES
    pool.give(wide)
    other = pool.take()
    assert other is not None
    assert not other.is_wide
    assert pool.take(wide=True) is wide
    for pipe in (*lent, other):
        assert pipe is not None
        pool.give(pipe)
    assert pool.lent == 0
    pool.close()


def past_the_soft_limit(*_: int) -> int:
    """Answer as the kernel does about pipes of two pages."""
    return 8192


def test_one_of_two_pages_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes.fcntl, "fcntl", past_the_soft_limit)
    before = open_descriptors()
    pool = PipePool(10)
    assert pool.take() is None
    assert pool.lent == 0
    assert open_descriptors() == before


def test_a_pipe_of_the_other_kind_is_better_than_no_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = PipePool(2)
    wide, narrow = pool.take(wide=True), pool.take()
    assert wide is not None
    assert narrow is not None
    pool.give(wide)
    assert pool.take() is wide
    assert pool.take() is None
    pool.give(wide)
    pool.give(narrow)
    monkeypatch.setattr(pipes.fcntl, "fcntl", past_the_soft_limit)
    assert pool.take() is narrow
    assert pool.take() is wide
    for pipe in (narrow, wide):
        pool.give(pipe)
    assert pool.lent == 0
    pool.close()
