"""The tests run in forked processes, and each outcome reaches the first process."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TESTS = """
import os
import signal

import pytest


@pytest.fixture(scope="session")
def ended(tmp_path_factory):
    yield
    folder = tmp_path_factory.getbasetemp()
    (folder.parent / f"ended-{os.getpid()}").touch()


@pytest.fixture(autouse=True)
def counted(ended, tmp_path_factory, request):
    with (tmp_path_factory.getbasetemp().parent / "ran").open("a") as file:
        file.write(f"{request.node.name} {os.getpid()}\\n")


@pytest.mark.parametrize("number", range(40))
def test_one(number):
    pass


def test_killed():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("number", range(9))
def test_after(number):
    pass


def test_failed():
    assert "this" == "that"


def test_skipped():
    pytest.skip("a reason")


@pytest.fixture
def broken():
    raise ValueError("a broken fixture")


def test_broken(broken):
    pass
"""
NUMBER = 40 + 1 + 9 + 3


def run(folder: Path, *options: str, tests: str = TESTS) -> tuple[int, str]:
    file = folder / "test_it.py"
    file.write_text(tests)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "support.plugins.processes", "--noconftest",
         "-o", f"cache_dir={folder}", "--rootdir", str(folder), "-c", "/dev/null",
         "--basetemp", str(folder / "temp"), *options, file],
        cwd=ROOT,
        env={"PYTHONPATH": "tests", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take a second
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def ran(folder: Path) -> dict[str, str]:
    """Return the process of each test that has begun."""
    lines = [line.split() for line in (folder / "temp/ran").read_text().splitlines()]
    assert len(lines) == len(dict(lines)), "a test has run twice"
    return dict(lines)


def test_each_test_runs_once_and_its_outcome_is_reported(tmp_path: Path) -> None:
    status, output = run(tmp_path, "--processes", "3")
    assert status == 1, output
    assert "2 failed, 49 passed, 1 skipped, 1 error" in output
    assert "test_it.py::test_killed has ended during the test" in output
    assert "assert 'this' == 'that'" in output
    assert "ValueError: a broken fixture" in output
    tests = ran(tmp_path)
    assert len(tests) == NUMBER
    processes = set(tests.values())
    assert 3 <= len(processes) <= 4  # one is new, in the place of the killed one
    killed = tests["test_killed"]
    ended = {each.name.removeprefix("ended-") for each in (tmp_path / "temp").glob("ended-*")}
    assert ended == processes - {killed}


def test_a_folder_whose_tests_take_longer_is_a_larger_part(tmp_path: Path) -> None:
    slow = tmp_path / "integration/test_slow.py"  # seven tests, each for seven usual ones
    slow.parent.mkdir()
    slow.write_text(TESTS.partition("@pytest.mark")[0] + one_test("slow", 7))
    quick = TESTS.partition("@pytest.mark")[0] + one_test("quick", 49)
    status, output = run(tmp_path, "--processes", "2", str(slow), tests=quick)
    assert status == 0, output
    first = {process: test for test, process in reversed(ran(tmp_path).items())}
    assert sorted(first.values()) == ["test_quick[0]", "test_slow[0]"]


def one_test(name: str, count: int) -> str:
    return f"""@pytest.mark.parametrize("number", range({count}))
def test_{name}(number):
    pass
"""


def test_a_run_stops_after_its_first_failure(tmp_path: Path) -> None:
    status, output = run(tmp_path, "--processes", "2", "--exitfirst")
    assert status == 1, output
    # Both processes may fail at the same moment.
    assert re.search(r"stopping after [12] failures", output)
    assert len(ran(tmp_path)) < NUMBER


@pytest.mark.parametrize(
    ("tests", "status", "words"),
    [
        ("import absent", 2, "No module named 'absent'"),
        ("", 5, "no tests ran"),
        ("import pytest\ndef test_it(): pytest.exit('enough')", 3, "Exit: enough"),
    ],
)
def test_a_run_without_an_outcome_fails(
    tmp_path: Path, tests: str, status: int, words: str
) -> None:
    got, output = run(tmp_path, "--processes", "2", tests=tests)
    assert got == status, output
    assert re.search(words, output), output
