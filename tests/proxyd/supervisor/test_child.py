"""State of a process in the supervisor: its messages, and the due time of the next process."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from support.base.cases import cases

from proxyd.ops.processes.listening import bound_port, listen
from proxyd.ops.processes.sd_notify import ServiceManager
from proxyd.supervisor.child import PAUSE_MOST_SECONDS, STEADY_SECONDS, Child, in_words
from proxyd.wiring.listeners import Listeners

CLIENTS = 40  # with this number one of two sockets is left without any client once in 10^12 times


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
        listen("127.0.0.1", 0, "API"), listen("127.0.0.1", 0, "proxy"), (), None, frozenset()
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


def test_it_gets_the_notifications_of_a_service_manager(child: Child, clock: Clock) -> None:
    theirs, manager = begin(child)
    assert child.hear()
    assert not child.is_settled
    assert child.life.fed_at is None
    manager.alive()
    manager.ready("here")
    assert child.hear()
    assert (child.life.is_ready, child.life.status, child.life.fed_at) == (True, "here", clock.now)
    manager.stopping("draining")
    assert child.hear()
    assert (child.life.is_ready, child.was_ever_ready, child.life.status) == (
        False,
        True,
        "draining",
    )
    theirs.close()
    assert not child.hear()


def test_a_reload_waits_for_the_end_of_the_one_before(child: Child) -> None:
    theirs, manager = begin(child)
    child.life.must_reload = True
    assert not child.life.may_reload  # it starts, and SIGHUP would end it
    manager.ready("here")
    child.hear()
    assert child.life.may_reload
    child.life.reload()
    child.life.must_reload = True
    assert not child.life.may_reload
    manager.reloading()
    manager.ready("here")
    child.hear()
    assert child.life.may_reload
    manager.stopping("draining")
    child.hear()
    assert (child.life.is_draining, child.life.must_reload, child.life.is_reloading) == (
        True,
        False,
        False,
    )
    theirs.close()


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


def test_clients_go_elsewhere_until_a_successor_is_ready(child: Child, first: Listeners) -> None:
    theirs, manager = begin(child)
    manager.ready("here")
    child.hear()
    assert accepted(child, first) > 0
    manager.stopping("draining")
    child.hear()
    assert accepted(child, first) == 0
    child.ended()
    theirs.close()
    for _ in range(2):  # attempts, which fail
        theirs, _manager = begin(child)
        assert accepted(child, first) == 0
        child.ended()
        assert accepted(child, first) == 0
        theirs.close()
    theirs, _manager = begin(child)
    child.listeners.resume()  # as a process does that starts to accept
    assert accepted(child, first) > 0
    theirs.close()


def test_those_of_one_that_was_killed_go_elsewhere_at_once(child: Child, first: Listeners) -> None:
    theirs, manager = begin(child)
    manager.ready("here")
    child.hear()
    theirs.close()
    child.ended()
    assert accepted(child, first) == 0


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
    first.resume()  # at the same port, which the kernel had chosen
    assert accepted(child, other.listeners) > 0
    theirs.close()
    other.close()


def test_sockets_of_the_service_manager_stay_open_to_all(clock: Clock) -> None:
    proxy, own = (listen("127.0.0.1", 0, "proxy") for _ in range(2))
    child = Child(1, Listeners(None, proxy, (own,), None, frozenset([proxy])), clock)
    theirs, _ = begin(child)
    child.ended()
    socket.create_connection(proxy.getsockname()).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(own.getsockname())
    child.close()
    child.listeners.pause()  # no effect by now
    theirs.close()


def accepted(child: Child, others: Listeners) -> int:
    """Connect clients, and accept all. Return the number that came by a process' own socket."""
    number = {}
    with ExitStack() as opened:
        port = bound_port(others.proxy)
        for _ in range(CLIENTS):
            opened.enter_context(socket.create_connection(("127.0.0.1", port)))
        for sock in (child.listeners.proxy, others.proxy):
            number[sock] = 0
            with suppress(OSError):  # no connection waits, or it does not listen
                while True:
                    sock.accept()[0].close()
                    number[sock] += 1
    assert sum(number.values()) == CLIENTS
    return number[child.listeners.proxy]


@cases(
    ("status", "words"),
    [(0, "ended with status 0"), (-9, "was killed by SIGKILL"), (-40, "was killed by signal 40")],
)
def test_an_end_in_words(status: int, words: str) -> None:
    assert in_words(status) == words
