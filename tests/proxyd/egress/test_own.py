"""Which addresses the kernel says are this machine's own."""

import errno
import logging
import socket
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from proxyd.egress.own import KEPT_MAX, KEPT_SECONDS, OwnAddresses

HERE = ["127.0.0.1", "127.0.0.5", "127.255.255.255", "::1"]
ELSEWHERE = ["8.8.8.8", "1.2.3.4", "2606:4700::1"]


class Asked:
    """A clock that the test sets, and how often the kernel is asked."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.addresses = OwnAddresses(lambda: self.seconds)

    @property
    def times(self) -> int:
        return self.addresses._sequence

    def about(self, text: str) -> bool:
        return self.addresses(ip_address(text))


@pytest.fixture
def asked() -> Iterator[Asked]:
    made = Asked()
    yield made
    made.addresses.close()


@pytest.mark.parametrize("text", HERE)
def test_an_address_that_leads_here_is_found(asked: Asked, text: str) -> None:
    assert asked.about(text)


@pytest.mark.parametrize("text", ELSEWHERE)
def test_an_address_that_leads_elsewhere_is_not_own(asked: Asked, text: str) -> None:
    assert not asked.about(text)


def test_the_kernel_is_asked_again_after_a_while(asked: Asked) -> None:
    for _ in range(3):
        assert asked.about("127.0.0.1")
        assert not asked.about("8.8.8.8")
    assert asked.times == 2
    asked.seconds += KEPT_SECONDS
    assert asked.about("127.0.0.1")
    assert asked.times == 3


def test_the_known_addresses_are_bounded(asked: Asked) -> None:
    for number in range(KEPT_MAX + 10):
        asked.addresses(ip_address(0x08000000 + number))
    assert len(asked.addresses._known) == 10


def test_without_a_descriptor_nothing_is_let_out_and_nothing_is_remembered(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("proxyd.egress.own.socket.socket", refuse)
        assert asked.about("8.8.8.8")
    assert not asked.about("8.8.8.8")


def test_a_kernel_that_does_not_answer_is_logged_once(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("proxyd.egress.own.socket.AF_NETLINK", 255)
    with caplog.at_level(logging.WARNING):
        assert not asked.about("127.0.0.1")
        assert not asked.about("127.0.0.2")
    assert len(caplog.records) == 1
    assert "egress.deny" in caplog.text


def test_once_opened_it_needs_no_descriptor(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    asked.addresses.open()
    monkeypatch.setattr("proxyd.egress.own.socket.socket", None)
    assert asked.about("127.0.0.1")
    assert not asked.about("8.8.8.8")


def test_closing_twice_is_harmless_and_it_may_be_asked_again(asked: Asked) -> None:
    for _ in range(2):
        assert asked.about("127.0.0.1")
        asked.addresses.close()
        asked.addresses.close()
        asked.seconds += KEPT_SECONDS
