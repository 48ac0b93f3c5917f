# ruff: noqa: F811 - fixtures of another file
"""Commands about disputed jobs: the evidence with its log, and the decision."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.base.cases import cases

from proxyd.loop import runner
from storage.logs.files import Attempt, LogFiles
from tests.proxyd.cli.staff.test_commands import BECAUSE, answer
from tests.proxyd.cli.test_commands import (  # noqa: F401 - fixtures
    EMAIL,
    ada,
    database,
    database_of_ada,
    disputed,
    environment,
    misused,
    refused,
    rows,
    run,
)

Run = Callable[..., Any]
KEPT = 8 * 1024 * 1024
LOG = b"".join(b"step %d\n" % at for at in range(400)) + b"No space left on device\nbye\x1b[2J\n"


@pytest.fixture
def job(run: Run, ada: None, environment: dict[str, str], database: Path) -> str:
    """Begin with a disputed job for 10 credits, and its log."""
    assert run(["wallet", "deposit", EMAIL, "--credits", "20"]).returncode == 0
    ((user,),) = rows(database, "SELECT id FROM users")
    [job_id] = runner.run(disputed(environment["PROXYD_STORAGE__URL"], str(user), jobs=1))
    logs = LogFiles(database.parent / "work" / "logs", keep_bytes=KEPT)
    logs.write(Attempt(job_id, 1), "out", 0, LOG)
    return job_id


def test_a_dispute_is_shown_with_its_log_and_decided_in_part(run: Run, job: str) -> None:
    shown = answer(run, ["jobs", "show", job, "--search", "no SPACE"])
    assert shown["job"]["id"] == job
    assert shown["statements"][0]["reason"] == "an empty file,\nand\x1b[2J"
    assert shown["answers"] == []
    assert shown["attempts"][0]["outcome"] == "completed"
    [log] = shown["logs"]
    assert (log["attempt"], log["stderr"]) == (1, [])
    lines = log["stdout"]
    assert [each["line"] for each in lines] == [399, 400, 401, 402]
    assert [each["text"] for each in lines if each["hit"]] == ["No space left on device"]
    words = run(["jobs", "show", job]).stdout
    assert "\x1b" not in words
    assert r"an empty file,\nand\x1b[2J" in words
    assert "step 398" in words
    assert "step 300" not in words
    assert "stdout of attempt 1:\n" in words
    assert "stderr of attempt 1: none" in words
    of_stream = answer(run, ["jobs", "show", job, "--stream", "stderr"])["logs"]
    assert of_stream == [{"attempt": 1, "stderr": []}]
    assert answer(run, ["jobs", "show", job, "--attempt", "1", "--stream", "stderr"])["logs"]
    refused(run(["jobs", "show", job, "--attempt", "2"]), "no attempt 2: its attempts are 1")
    waits = run(["jobs", "split", job, "40", *BECAUSE], PROXYD_STAFF__APPROVAL_CREDITS="1")
    assert (waits.returncode, waits.stdout.startswith("waits: approval ")) == (3, True)
    [request] = answer(run, ["approvals"])["approvals"]
    assert run(["refuse", request["id"], "--reason", "alone here"]).returncode == 0
    split = ["jobs", "split", job, "40", "--reason", "four of ten files are missing"]
    for _ in range(2):
        done = run(split)
        assert done.stdout == (
            f"{job}: the buyer has 4.00 credit back, the worker has 5.40 credit\n"
        )
    assert answer(run, split)["decided"]["decision"] == "split"
    refused(run(["jobs", "reverse", job, *BECAUSE]), "a decision is final")
    assert run(["ledger", "audit"]).returncode == 0
    acts = [each["action"] for each in answer(run, ["log", "--action", "job.view"])["log"]]
    assert len(acts) == 5


@cases("percent", ["0", "100", "x", "-1", "1.5", ""])
def test_a_part_is_a_percentage(run: Run, ada: None, percent: str) -> None:
    misused(run(["jobs", "split", "job", "--", percent]), "")


def test_a_job_that_is_not_there_is_refused(run: Run, ada: None) -> None:
    refused(run(["jobs", "show", "none"]), "There is no such job.")
    refused(run(["jobs", "split", "none", "5", *BECAUSE]), "There is no such job")
    refused(run(["jobs", "show", ""]), "1 to 254", code=2)
