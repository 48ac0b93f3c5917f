"""In which ways proxyd is measured, by what it says of itself."""

import subprocess

import pytest

from bench import bought
from bench.bought import INTERPRETED, PROXYD, is_ours, several


class Said:
    """A proxyd that answers its commands.

    Args:
        version: what it says of itself; of one that is switched off, with "interpreted".
        settings: whether it knows the number of processes.
    """

    def __init__(self, version: str, *, settings: bool) -> None:
        self._version = version
        self._settings = settings

    def run(
        self, command: list[str], env: dict[str, str], **_: object
    ) -> subprocess.CompletedProcess[str]:
        if "--version" in command:
            return subprocess.CompletedProcess(command, 0, stdout=self._version)
        known = self._settings or bought.SETTING not in env
        return subprocess.CompletedProcess(command, 0 if known else 2, stdout="")


@pytest.mark.parametrize(
    ("said", "knows_processes", "cores", "expected"),
    [
        ("proxyd 0.1.0", False, 2, [PROXYD]),
        ("proxyd 0.1.0 (interpreted: the compiled files cannot be loaded)", False, 2, [PROXYD]),
        ("proxyd 0.1.0 (compiled)", False, 2, [PROXYD, INTERPRETED]),
        ("proxyd 0.1.0 (compiled)", True, 2, [PROXYD, INTERPRETED, several(2)]),
        ("proxyd 0.1.0", True, 2, [PROXYD, several(2)]),
        ("proxyd 0.1.0", True, 16, [PROXYD, several(8)]),
        ("proxyd 0.1.0", True, 1, [PROXYD]),
    ],
)
def test_each_way_that_it_can_run_in_takes_part(
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    knows_processes: bool,
    cores: int,
    expected: list[str],
) -> None:
    monkeypatch.setattr(bought.subprocess, "run", Said(said, settings=knows_processes).run)
    monkeypatch.setattr(bought.os, "cpu_count", lambda: cores)
    assert list(bought.ways()) == expected


def test_proxyd_here_has_its_ways() -> None:
    assert PROXYD in bought.ways()
    assert not bought.is_compiled(bought.SWITCH_OFF)


def test_all_its_ways_are_proxyd_and_nothing_else_is() -> None:
    assert all(map(is_ours, (PROXYD, INTERPRETED, several(2))))
    assert not any(map(is_ours, ("no proxy", "dante", "pproxy", "proxy", "proxydx")))
