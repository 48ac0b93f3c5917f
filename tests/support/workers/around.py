"""Surroundings of a sandbox while the battery runs in it; the job must not reach them."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from support.workers.battery import SECRET

ABSTRACT = f"proxyctl-battery-{os.getpid()}"  # several processes run tests


@contextmanager
def outside() -> Iterator[dict[str, Any]]:
    """Servers of this machine that no job may reach, and a secret in the agent's environment."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{ABSTRACT}")
        abstract.listen()
        port = listening.getsockname()[1]
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("PROXYD_WORKER_TOKEN", SECRET)
        yield {
            "targets": {
                "host's loopback": ("127.0.0.1", port),
                "host's address": (own_address(), port),
            },
            "abstract": ABSTRACT,
        }


def own_address() -> str:
    """Return an address of this machine that is not its loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return "127.0.0.2"
        return str(sock.getsockname()[0])
