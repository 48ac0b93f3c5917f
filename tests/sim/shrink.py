"""Shrinks a failing run: fewer faults, then fewer clients, jobs, sessions and processes, and less
time.

Each part of a run has its own stream of draws, so leaving out one part does not change the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.sim.faults import SOLO
from tests.sim.run import Outcome, run
from tests.sim.scenario import Scenario

Item = TypeVar("Item")


def shrink(scenario: Scenario, tell: Callable[[str], None]) -> Outcome:
    """Return the outcome of the smallest failing run found.

    Any failure counts: a smaller run may fail by another check that has the same cause.

    Args:
        scenario: a run that fails.
        tell: called with each success.
    """
    best = scenario

    def fails(candidate: Scenario) -> bool:
        return bool(run(candidate).failures)

    faults = reduced_list(best.faults, lambda left: fails(replace(best, faults=tuple(left))))
    best = replace(best, faults=tuple(faults))
    tell(f"{len(best.faults)} of {len(scenario.faults)} faults")
    clients = reduced_list(best.clients, lambda left: fails(replace(best, clients=tuple(left))))
    best = replace(best, clients=tuple(clients))
    tell(f"{len(best.clients)} of {len(scenario.clients)} clients")
    staff = reduced_list(best.staff, lambda left: fails(replace(best, staff=tuple(left))))
    best = replace(best, staff=tuple(staff))
    jobs = reduced_list(best.jobs, lambda left: fails(replace(best, jobs=tuple(left))))
    best = replace(best, jobs=tuple(jobs))
    agents = reduced_list(best.agents, lambda left: fails(replace(best, agents=tuple(left))))
    best = replace(best, agents=tuple(agents))
    tell(f"{len(best.jobs)} of {len(scenario.jobs)} jobs, {len(best.agents)} agents")
    while len(best.sessions) > 1 and fails(replace(best, sessions=best.sessions[:-1])):
        best = replace(best, sessions=best.sessions[:-1])
    for nodes in range(1 if best.mode is SOLO else 2, best.nodes):
        if fails(replace(best, nodes=nodes)):
            best = replace(best, nodes=nodes)
            break
    tell(f"{len(best.sessions)} sessions, {best.nodes} processes")
    seconds = best.seconds
    while seconds > 1.0:
        seconds *= 0.7
        if not fails(replace(best, seconds=seconds)):
            break
        best = replace(best, seconds=seconds)
    faults = reduced_list(best.faults, lambda left: fails(replace(best, faults=tuple(left))))
    return run(replace(best, faults=tuple(faults)))


def reduced_list(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """Return a part of a list that still fails, but not without any one of its items (ddmin)."""
    left, parts = list(items), 2
    if not left or fails([]):
        return []
    while len(left) > 1:
        size = max(1, len(left) // parts)
        for start in range(0, len(left), size):
            rest = left[:start] + left[start + size :]
            if fails(rest):
                left, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(left))
    return left
