"""Order in which the replicas of an app are tried."""

from collections.abc import Callable, Sequence

from market.deploys.rollouts import Serving


def in_turn(
    targets: Sequence[Serving],
    port: int,
    streams_of: Callable[[str], int],
    kept: str = "",
) -> list[tuple[Serving, int]]:
    """Return the replicas that may be tried, each with the port, the best first.

    Args:
        targets: the replicas that are ready, those of the newest revision first.
        port: that the address names; 0 for the first one of each.
        streams_of: how many streams lead to a job.
        kept: the job that the client came to before; "" where that does not matter.
    """
    listening = [
        (each, port or each.ports[0].port)
        for each in targets
        if (any(port == own.port for own in each.ports) if port else each.ports)
    ]
    # With equal numbers of streams, the sort keeps the order of the newest.
    return sorted(listening, key=lambda each: (each[0].job_id != kept, streams_of(each[0].job_id)))
