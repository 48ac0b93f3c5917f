"""The state of a database as its store knows it, for the metrics and for load balancers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from storage.engines.errors import Cause


@dataclass(frozen=True, slots=True)
class Health:
    """The known state of a database.

    Args:
        trouble: why it accepts no writes at the moment; None when it does.
        server: the server that accepted writes last.
        failures: units of work that were refused, by cause.
        failovers: how often another server became the one that accepts writes.
        repeated: units that were run again, because their connection was lost before the commit.
    """

    trouble: Cause | None = None
    server: str = ""
    failures: Mapping[Cause, int] = field(default_factory=dict)
    failovers: int = 0
    repeated: int = 0
