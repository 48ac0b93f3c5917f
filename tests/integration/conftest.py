"""Fixtures for clients that fetch through a bought session."""

from collections.abc import Callable, Iterator

import pytest
from support.clients.buyer import Buyer, selling
from support.targets import threads
from support.targets.threads import WebTarget
from support.targets.tls import Certificate, make_certificate


@pytest.fixture(scope="module")
def sell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Buyer]]:
    """A daemon for all clients of a file; each call sells a session."""
    with selling(tmp_path_factory.mktemp("daemon")) as sell_one:
        yield sell_one


@pytest.fixture
def buyer(sell: Callable[[], Buyer]) -> Buyer:
    """A buyer with a fresh session."""
    return sell()


@pytest.fixture
def target() -> Iterator[WebTarget]:
    """An HTTP server on this machine."""
    with threads.web() as server:
        yield server


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A self-signed certificate for this machine."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def secure_target(certificate: Certificate) -> Iterator[WebTarget]:
    """An HTTPS server on this machine."""
    with threads.web(certificate.server) as server:
        yield server
