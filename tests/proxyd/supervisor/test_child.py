"""What the supervisor knows of a process: what it said, and when the next one is due."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from proxyd.listeners import Listeners
from proxyd.ops.listening import bound_port, listen
from proxyd.ops.sd_notify import ServiceManager
from proxyd.supervisor.child import PAUSE_MOST_SECONDS, STEADY_SECONDS, Child, in_words

CLIENTS = 40  # so many leave one of two sockets without any once in 10^12 times


class Clock:
    """A monotonic clock that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def first() -> Iterator[Listeners]:
    made = Listeners(
        listen("127.0.0.1", 0, "API"), listen("127.0.0.1", 0, "proxy"), (), None, are_held=False
    )
    yield made
    made.close()


@pytest.fixture
def child(first: Listeners, clock: Clock) -> Iterator[Child]:
    made = Child(1, first.beside(), clock)
    yield made
    made.close()


def begin(child: Child) -> tuple[socket.socket, ServiceManager]:
    """Have a process, and return its end of the channel."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    child.started(123, ours)
    return theirs, ServiceManager(theirs.send, 30.0)


def test_it_hears_what_a_service_manager_would(child: Child, clock: Clock) -> None:
    theirs, manager = begin(child)
    assert child.hear()
    assert not child.is_settled
    assert child.fed_at is None
    manager.alive()
    manager.ready("here")
    assert child.hear()
    assert (child.is_ready, child.status, child.fed_at) == (True, "here", clock.now)
    manager.stopping("draining")
    assert child.hear()
    assert (child.is_ready, child.was_ever_ready, child.status) == (False, True, "draining")
    theirs.close()
    assert not child.hear()


def test_the_pauses_grow_up_to_a_bound_and_begin_anew_after_a_steady_life(
    child: Child, clock: Clock
) -> None:
    pauses = []
    for _ in range(9):
        theirs, _manager = begin(child)
        pauses.append(child.ended())
        theirs.close()
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert pauses[-1] == PAUSE_MOST_SECONDS
    assert child.due_at == clock.now + PAUSE_MOST_SECONDS
    theirs, manager = begin(child)
    manager.ready("here")
    child.hear()
    clock.now += STEADY_SECONDS
    assert child.ended() == 0.1
    theirs.close()


def test_clients_go_elsewhere_once_a_process_has_died_before_it_was_ready(
    child: Child, first: Listeners
) -> None:
    theirs, manager = begin(child)
    manager.ready("here")
    child.hear()
    child.ended()
    assert accepted(child, first) > 0  # they wait for the successor
    theirs.close()
    for _ in range(2):
        theirs, _manager = begin(child)
        child.ended()
        assert accepted(child, first) == 0
        theirs.close()
    child.listen()
    assert accepted(child, first) > 0


def test_process_0_leaves_the_proxys_clients_and_never_the_apis(
    first: Listeners, clock: Clock
) -> None:
    other = Child(1, first.beside(), clock)
    child = Child(0, first, clock)
    theirs, _ = begin(child)
    child.ended()
    assert accepted(child, other.listeners) == 0
    assert first.api is not None
    socket.create_connection(first.api.getsockname()).close()
    theirs.close()
    other.close()


def accepted(child: Child, others: Listeners) -> int:
    """Have clients come, all of whom are accepted; return how many by a process' own socket."""
    number = {}
    with ExitStack() as opened:
        port = bound_port(others.proxy)
        for _ in range(CLIENTS):
            opened.enter_context(socket.create_connection(("127.0.0.1", port)))
        for sock in (child.listeners.proxy, others.proxy):
            number[sock] = 0
            with suppress(OSError):  # nobody waits, or it does not listen
                while True:
                    sock.accept()[0].close()
                    number[sock] += 1
    assert sum(number.values()) == CLIENTS
    return number[child.listeners.proxy]


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "ended with status 0"), (-9, "was killed by SIGKILL"), (-40, "was killed by signal 40")],
)
def test_an_end_in_words(status: int, words: str) -> None:
    assert in_words(status) == words
