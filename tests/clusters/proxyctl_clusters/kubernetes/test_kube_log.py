"""proxyctl_clusters.kubernetes.kube_log: each byte of a log once, after any failure."""

import os
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from support.base.waiting import until_true

from proxyctl_clusters.kubernetes.kube_api import KubeError, Opened
from proxyctl_clusters.kubernetes.kube_log import MISSING, LogFollower


@dataclass
class Node:
    """A node's log, and how often reading it breaks off.

    Attributes:
        now: the readers at this moment.
        most: the highest number of readers at the same time.
    """

    log: bytes = b""
    breaks_at: list[int] = field(default_factory=list)
    reads: int = 0
    now: int = 0
    most: int = 0

    def lines(
        self, path: str, query: Mapping[str, str], size: int, opened: Opened
    ) -> Generator[bytes, None, None]:
        self.reads += 1
        end = self.breaks_at.pop(0) if self.breaks_at else None
        data = self.log[:end]
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for at in range(0, len(data), 7):
                yield data[at : at + 7]
        finally:
            self.now -= 1
        if end is not None:
            raise KubeError("it broke off")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def shown(pipe: tuple[int, int]) -> bytes:
    try:
        return os.read(pipe[0], 1 << 16)
    except BlockingIOError:
        return b""


TEXT = b"".join(b"line %d\n" % number for number in range(400))


def test_a_log_that_breaks_off_is_shown_once(pipe: tuple[int, int]) -> None:
    node = Node(TEXT, breaks_at=[100, 40, 1500])
    follower = LogFollower(node, "log", pipe[1], lambda: None)
    for _ in range(3):
        with pytest.raises(KubeError):
            follower._read({})
    follower._read({})
    assert shown(pipe) == TEXT
    assert node.reads == 4


def test_a_log_whose_beginning_was_thrown_away_goes_on_where_it_was(pipe: tuple[int, int]) -> None:
    node = Node(TEXT[:2000])
    follower = LogFollower(node, "log", pipe[1], lambda: None)
    follower._read({})
    node.log = TEXT[500:3000]
    follower._tail = TEXT[1800:2000]  # of a longer log it would be the last part alone
    follower._read({})
    node.log = TEXT[500:]
    follower._read({})
    assert shown(pipe) == TEXT


def test_a_missing_part_is_marked(pipe: tuple[int, int]) -> None:
    node = Node(TEXT[:1000])
    follower = LogFollower(node, "log", pipe[1], lambda: None)
    follower._read({})
    node.log = TEXT[3000:]
    follower._read({})
    follower._read({})
    assert shown(pipe) == TEXT[:1000] + MISSING + TEXT[3000:]
    assert node.most == 1


def test_a_log_that_is_read_as_it_grows_is_whole_at_its_end(pipe: tuple[int, int]) -> None:
    node = Node(TEXT[:50])
    rung: list[None] = []
    follower = LogFollower(node, "log", pipe[1], lambda: rung.append(None))
    follower.begin()
    until_true(lambda: bool(rung), "its end is told")
    node.log = TEXT
    follower.finish(5)
    assert shown(pipe) == TEXT
