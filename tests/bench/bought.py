"""proxyd as an operator runs it and a buyer uses it: its own database, money, a bought session."""

import sys
from dataclasses import dataclass
from pathlib import Path

from support import process

from bench.servers import Kind, free_port

SESSION_GB = 10_000


@dataclass(frozen=True)
class Bought:
    """How to run proxyd so that it serves a bought session, and how to ask its API."""

    kind: Kind
    api_port: int
    token: str


def proxyd(folder: Path) -> Bought:
    """Set proxyd up in a folder; the session is the largest there is, bought through the API.

    Metering, ledger and durable commits are on, as always; two limits on connections are raised.
    """
    url = f"sqlite:///{folder}/proxyd.db"
    email, password = process.funded(url, usd="1000000")
    with process.serving(url) as daemon:
        token = daemon.log_in(email, password)
        session = daemon.buy(token, gb=SESSION_GB)["proxy"]
        assert daemon.stop() == 0, daemon.output
    api_port = free_port()
    environment = process.environment(
        url,
        PROXYD_API__PORT=str(api_port),
        PROXYD_PROXY__HOST="{host}",
        PROXYD_PROXY__PORT="{port}",
        PROXYD_EGRESS__ALLOW='["127.0.0.0/8", "10.0.0.0/8"]',
        PROXYD_LIMITS__CONNECTIONS_PER_SESSION="100000",
        PROXYD_LIMITS__CONNECTIONS_PER_ADDRESS="100000",
    )
    kind = Kind(
        "proxyd",
        (sys.executable, "-m", "proxyd", "serve"),
        environment={name: text for name, text in environment.items() if "PROXYD" in name},
        user=session["username"],
        password=session["password"],
    )
    return Bought(kind, api_port, token)
