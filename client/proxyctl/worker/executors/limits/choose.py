"""Chooses the way to hold limits on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proxyctl.worker.executors.base.base import Finding, TaskError
from proxyctl.worker.executors.limits.base import NO_SCOPE
from proxyctl.worker.executors.limits.cgroup1 import Cgroup1
from proxyctl.worker.executors.limits.cgroup2 import Cgroup2
from proxyctl.worker.executors.limits.systemd import SystemdScopes

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxyctl.worker.executors.limits.base import LimitHolder

# The best first: a scope outlives the agent's unit, a group of the unit's own may not.
KINDS: Final[dict[str, Callable[[str], LimitHolder]]] = {
    "systemd": lambda scope: SystemdScopes(scope=scope),
    "cgroup2": lambda scope: Cgroup2(scope=scope),
    "cgroup1": lambda scope: Cgroup1(scope=scope),
}


def choose(
    wanted: str = "auto", *, scope: str = NO_SCOPE
) -> tuple[LimitHolder | None, list[Finding]]:
    """Return a way to hold limits that works here, and the findings.

    Args:
        wanted: "auto", or one of `KINDS`.
        scope: of the agent, as `scope_of` names it.

    Raises:
        TaskError: the owner wants a way that is unknown, or that does not work here.
    """
    if wanted != "auto" and wanted not in KINDS:
        known = ", ".join(("auto", *KINDS))
        raise TaskError("refused", f"limits {wanted!r} are none of: {known}")
    findings: list[Finding] = []
    for name in KINDS if wanted == "auto" else (wanted,):
        limits = KINDS[name](scope)
        looked = limits.check()
        if all(each.is_met for each in looked):
            return limits, looked
        findings += looked
    return None, findings
