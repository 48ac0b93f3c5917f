"""proxyctl.worker.executors.limits.choose"""

import pytest

from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.executors.limits import choose as module
from proxyctl.worker.executors.limits.cgroup1 import Cgroup1
from proxyctl.worker.executors.limits.choose import choose


def test_no_jobs_run_without_limits() -> None:
    """A limit that cannot be held is refused."""
    with pytest.raises(TaskError, match="none of: auto"):
        choose("none")


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    """A mistake in the owner's file gets the correct values in its message."""
    with pytest.raises(TaskError, match="cgroup2"):
        choose("cgroups")


def test_where_nothing_holds_all_reasons_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the owner can choose which of them to repair."""
    monkeypatch.setattr(
        module, "KINDS", {"one": lambda _: Cgroup1({}), "two": lambda _: Cgroup1({})}
    )
    limits, findings = choose()
    assert limits is None
    assert len(findings) == 2
    assert all(each.remedy for each in findings)
