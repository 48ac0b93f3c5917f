"""An agent that is killed by itself when an attempt has come to some state.

`python -m support.workers.agent STATE worker run --folder FOLDER`: kill -9 when the journal has
kept the state, before anything is done in it.
"""

import os
import signal
import sys

from proxyctl import __main__ as program
from proxyctl.worker.base.states import AttemptState
from proxyctl.worker.task.journal import Entry, Journal


def main() -> None:
    """Run the agent with a journal that kills it."""
    die_at = sys.argv.pop(1)
    save = Journal._save

    def save_and_die(self: Journal, entry: Entry) -> None:
        save(self, entry)
        if entry.state.value == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    move = Journal.move

    def move_and_die(self: Journal, entry: Entry, state: AttemptState, **changes: object) -> Entry:
        if state.value == die_at == AttemptState.PREPARING.value:  # the journal has no PREPARING
            os.kill(os.getpid(), signal.SIGKILL)
        return move(self, entry, state, **changes)

    Journal._save = save_and_die  # type: ignore[method-assign]
    Journal.move = move_and_die  # type: ignore[method-assign]
    program.main()


if __name__ == "__main__":
    main()
