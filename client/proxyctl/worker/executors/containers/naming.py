"""The names and labels of the containers of attempts."""

from __future__ import annotations

import re
from typing import Final

from proxyctl.worker.executors.base.base import TaskError

ATTEMPT_LABEL: Final = "proxyd.attempt"
AGENT_LABEL: Final = "proxyd.agent"

PREFIX: Final = "proxyd-"  # of a container's name, before the attempt's identifier
NETWORK_PREFIX: Final = "proxyd-net-"  # the same for the container that has the job's network
_ATTEMPT: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")


def name_of(attempt_id: str) -> str:
    """Return the name of an attempt's container.

    Raises:
        TaskError: the text is no identifier of an attempt.
    """
    if not _ATTEMPT.fullmatch(attempt_id):
        raise TaskError("refused", f"{attempt_id!r} is no identifier of an attempt")
    return PREFIX + attempt_id


def network_name_of(attempt_id: str) -> str:
    """Return the name of the container that has the network of an attempt."""
    return NETWORK_PREFIX + attempt_id


def is_network(name: str) -> bool:
    """Return whether a container of this name has the network of an attempt."""
    return name.startswith(NETWORK_PREFIX)
