"""More processes than cores are worth a warning; one process never is."""

import os

import pytest

from proxyd.ops.checks import cores
from proxyd.ops.checks.cores import too_few_cores


@pytest.mark.parametrize(
    ("processes", "may_use", "is_warned"),
    [(1, 1, False), (2, 2, False), (2, 1, True), (9, 8, True)],
)
def test_more_processes_than_cores_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, processes: int, may_use: int, is_warned: bool
) -> None:
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: set(range(may_use)))
    warning = too_few_cores(processes)
    assert bool(warning) is is_warned
    assert not is_warned or f"{processes}, and this daemon may use {may_use} " in warning


def test_the_cores_are_those_that_this_process_may_use() -> None:
    assert too_few_cores(len(os.sched_getaffinity(0))) == ""
