# ruff: noqa: F811 - fixtures of another file
"""Commands about the public side: their output and their refusals."""

import re
from pathlib import Path

import pytest
from support.base.cases import cases

from tests.proxyd.cli.staff.test_commands import BECAUSE, Run, answer
from tests.proxyd.cli.test_commands import (  # noqa: F401 - fixtures
    ada,
    database,
    database_of_ada,
    environment,
    misused,
    refused,
    rows,
    run,
)


def test_invitations_are_made_listed_and_withdrawn(run: Run, ada: None, database: Path) -> None:
    done = run(["site", "invite", "--uses", "3", *BECAUSE])
    assert (done.returncode, done.stderr) == (0, "")
    code, link = (line.partition(": ")[2] for line in done.stdout.splitlines()[-2:])
    assert len(code) == 19
    assert link == f"http://127.0.0.1:8080/register?invitation={code}"
    assert code not in repr(rows(database, "SELECT * FROM invitations, texts, staff_log"))
    [row] = answer(run, ["site", "invitations"])["invitations"]
    assert (row["uses"], row["uses_left"]) == (3, 3)
    assert answer(run, ["site", "withdraw", row["id"], *BECAUSE])
    [row] = answer(run, ["site", "invitations"])["invitations"]
    assert row["uses_left"] == 0
    refused(run(["site", "withdraw", "x", *BECAUSE]), "no such invitation")
    refused(run(["site", "withdraw", "", *BECAUSE]), "A name has", code=2)
    refused(run(["status", "end", "x" * 255, *BECAUSE]), "A name has", code=2)


def test_texts_are_published_and_checked(
    run: Run, ada: None, tmp_path: Path, environment: dict[str, str]
) -> None:
    done = run(["site", "check"])
    assert done.returncode == 1
    assert "no version of the terms is valid" in done.stdout
    assert "no version of the privacy policy is valid" in done.stdout
    text = tmp_path / "text.md"
    text.write_text("# Terms\n\nBe kind.\n")
    for kind in ("terms", "privacy", "imprint"):
        publish = ["site", "publish", kind, "--file", str(text), *BECAUSE]
        assert answer(run, publish)["published"]["version"] == 1
    again = ["site", "publish", "terms", "--file", str(text), *BECAUSE]
    early = run(again)
    refused(early, "14 days", code=2)
    [day] = re.findall(r"valid_from is (\S+) or later", early.stderr)
    environment |= {"PROXYD_SITE__SUPPORT": "help@example.com", "PROXYD_MAIL__HOST": "mail.example"}
    report = answer(run, ["site", "check"])
    assert report["problems"] == []
    assert report["site"]["support"] == "help@example.com"
    assert [row["kind"] for row in report["texts"]] == ["terms", "privacy", "imprint"]
    assert answer(run, [*again, "--valid-from", day])["published"]["version"] == 2
    # Where access records are kept, the terms or the policy name the days.
    environment |= {"PROXYD_ACCESS_LOG__ENABLED": "on", "PROXYD_ACCESS_LOG__KEEP_DAYS": "14"}
    unstated = run(["site", "check"])
    assert unstated.returncode == 1
    assert "access records are kept for 14 days" in unstated.stdout
    text.write_text("# Text\n\nRecords of connections are kept for 14 days, bills from 2020 on.\n")
    answer(run, ["site", "publish", "imprint", "--file", str(text), *BECAUSE])
    assert run(["site", "check"]).returncode == 1
    turkish = ["site", "publish", "terms", "--version", "1", "--locale", "tr"]
    answer(run, [*turkish, "--file", str(text), *BECAUSE])
    assert answer(run, ["site", "check"])["problems"] == []
    environment["PROXYD_ACCESS_LOG__KEEP_DAYS"] = "20"
    assert run(["site", "check"]).returncode == 1


def test_notices_are_shown_and_ended(run: Run, ada: None) -> None:
    made = answer(run, ["status", "notice", "Work tonight", "--severity", "warning", *BECAUSE])
    [row] = answer(run, ["status", "notices"])["notices"]
    assert (row["id"], row["severity"], row["ended"]) == (made["notice"]["id"], "warning", None)
    assert answer(run, ["status", "end", row["id"], *BECAUSE])["ended"] == {"id": row["id"]}
    refused(run(["status", "end", row["id"], *BECAUSE]), "has ended")


@cases(
    ("arguments", "words"),
    [
        (["invite", "--uses", "10001", *BECAUSE], "1 to 10000 uses"),
        (["invite", "--days", "366", *BECAUSE], "1 to 365 days"),
        (["publish", "terms", "--file", "nowhere", *BECAUSE], "cannot be read"),
        (["publish", "terms", "--file", "/dev/null", *BECAUSE], "1 to 200000"),
        (["publish", "terms", "--file", "/dev/zero", *BECAUSE], "more than 800000 bytes"),
        (["publish", "terms", "--file", "/bin/true", *BECAUSE], "is not UTF-8"),
        (
            ["publish", "terms", "--file", __file__, "--valid-from", "31.1.2027", *BECAUSE],
            "is not a day",
        ),
        (["publish", "terms", "--file", __file__, "--locale", "x", *BECAUSE], "en or pt-BR"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    run: Run, ada: None, database: Path, arguments: list[str], words: str
) -> None:
    refused(run(["site", *arguments]), words, code=2)
    assert rows(database, "SELECT COUNT(*) FROM staff_log") == [(0,)]


@pytest.mark.parametrize("command", [["invite"], ["publish"], ["publish", "rules"], []])
def test_a_wrong_call_is_misuse(run: Run, command: list[str]) -> None:
    misused(run(["site", *command]), "usage")
