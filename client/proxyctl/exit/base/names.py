"""The names of an exit's files in its folder."""

from __future__ import annotations

from typing import Final

CONSENT: Final = "exit.json"
CONTROL: Final = "exit-control.json"
STATE: Final = "exit-state.json"
JOURNAL: Final = "exit-journal.json"
NODES: Final = "exit-nodes.json"
