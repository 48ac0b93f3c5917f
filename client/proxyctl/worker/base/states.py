"""The life of an attempt on this device, in one table.

A state is in the journal before anything is done in it, except for PREPARING, which can be done
again from TAKEN. So after a crash the journal may be one step ahead of the work, and never behind;
every step can be done again. Only a loss of power may leave it behind, and a loss of power ends
every program.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class AttemptState(str, Enum):
    """State of an attempt."""

    TAKEN = "taken"  # the daemon has given it to this device
    PREPARING = "preparing"  # image and inputs are fetched, and the sandbox is prepared
    STARTING = "starting"  # a supervisor has the order to start it
    RUNNING = "running"
    STOPPING = "stopping"  # the daemon or the owner of the device wants its end
    ENDED = "ended"  # nothing of it runs
    UPLOADING = "uploading"  # logs and outputs
    REPORTING = "reporting"  # the result is sent to the daemon until it has it
    DONE = "done"  # only its removal is left


# A job may be over before it was begun: cancelled, or refused by the sandbox. An attempt that the
# daemon has taken back goes to DONE from any state: the daemon wants no result of it.
NEXT: Final[dict[AttemptState, frozenset[AttemptState]]] = {
    AttemptState.TAKEN: frozenset(
        {AttemptState.PREPARING, AttemptState.REPORTING, AttemptState.DONE}
    ),
    AttemptState.PREPARING: frozenset(
        {AttemptState.STARTING, AttemptState.REPORTING, AttemptState.DONE}
    ),
    # It may have ended by itself before anybody saw it run.
    AttemptState.STARTING: frozenset(
        {AttemptState.RUNNING, AttemptState.STOPPING, AttemptState.ENDED, AttemptState.REPORTING}
    ),
    AttemptState.RUNNING: frozenset({AttemptState.STOPPING, AttemptState.ENDED}),
    AttemptState.STOPPING: frozenset({AttemptState.ENDED}),
    AttemptState.ENDED: frozenset({AttemptState.UPLOADING, AttemptState.DONE}),
    AttemptState.UPLOADING: frozenset({AttemptState.REPORTING, AttemptState.DONE}),
    AttemptState.REPORTING: frozenset({AttemptState.DONE}),
    AttemptState.DONE: frozenset(),
}

# A supervisor was given it, or may have been.
HANDED_OVER: Final = frozenset(AttemptState) - {AttemptState.TAKEN, AttemptState.PREPARING}

# Word for each state in reports to the daemon, which knows fewer states.
TOLD: Final[dict[AttemptState, str]] = {
    AttemptState.TAKEN: "taken",
    AttemptState.PREPARING: "preparing",
    AttemptState.STARTING: "preparing",
    AttemptState.RUNNING: "running",
    AttemptState.STOPPING: "running",
    AttemptState.ENDED: "ended",
    AttemptState.UPLOADING: "uploading",
    AttemptState.REPORTING: "reporting",
}


# Nothing of an attempt has reached anybody before it runs: no start, no log, no byte over a
# network. So a loss of power may take these back, as if they had never been; the end of the
# agent may not.
UNHEARD: Final = frozenset({AttemptState.TAKEN, AttemptState.PREPARING, AttemptState.STARTING})


def may_follow(before: AttemptState, after: AttemptState) -> bool:
    """Return whether one state may come right after another."""
    return after in NEXT[before]
