"""A test that hangs fails within its limit, with a traceback, and the others run all the same."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.base.brief import brief

ROOT = Path(__file__).parents[2]

SLEEPS = """
async def test_that_hangs():
    await asyncio.Event().wait()
"""
WAITS_FOR_WHO_IGNORES_CANCELLATION = """
async def ignore():
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

async def test_that_hangs():
    task = asyncio.create_task(ignore())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
"""
HANGS_IN_TEARDOWN = """
@pytest.fixture
async def deaf():
    yield
    await asyncio.Event().wait()

async def test_that_hangs(deaf):
    pass
"""
FAILS_AND_HANGS_IN_TEARDOWN = HANGS_IN_TEARDOWN.replace("    pass", "    assert False")
WAITS_FOR_A_THREAD = """
def test_that_hangs():
    threading.Event().wait()
"""
# The limit ends the third example, between draws; Hypothesis then sees that it is shorter than the
# first one, which drew the same value.
REPEATS_AN_EXAMPLE = """
from hypothesis import given, settings, strategies as st
seen = []

@settings(deadline=None, database=None)
@given(st.data())
def test_that_hangs(data):
    seen.append(data.draw(st.integers()))
    if len(seen) == 3:
        threading.Event().wait()
    data.draw(st.integers())
"""
NEXT = """

async def test_the_next_one_runs():
    await asyncio.sleep(0)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "test",
    brief(
        [
            WAITS_FOR_WHO_IGNORES_CANCELLATION,
            FAILS_AND_HANGS_IN_TEARDOWN,
            SLEEPS,
            HANGS_IN_TEARDOWN,
            WAITS_FOR_A_THREAD,
            REPEATS_AN_EXAMPLE,
        ],
    ),
)
def test_a_test_that_hangs_fails_within_its_limit(test: str, tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    imports = "import asyncio, threading\nfrom contextlib import suppress\nimport pytest\n"
    file.write_text(imports + test + NEXT)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-o", "timeout=3",
         "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout",
         "-o", "cache_dir=" + str(tmp_path), "--rootdir", str(ROOT), "-c", "pyproject.toml", file],
        cwd=ROOT,
        env={"PYTHONPATH": "tests", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take a second
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert run.returncode == 1, run.stdout + run.stderr
    assert "::test_that_hangs - support.plugins.time_limit.TimeLimitExceeded" in run.stdout
    assert "test_that_hangs" in run.stdout
    assert "::test_the_next_one_runs" not in run.stdout  # only failures are listed
    assert " passed" in run.stdout
