# ruff: noqa: F811 - fixtures of another file
"""Commands about cases: a finding about an exit is listed, shown, and made void."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.base.cases import cases

from tests.proxyd.cli.staff.test_commands import answer
from tests.proxyd.cli.test_commands import (  # noqa: F401 - fixtures
    ada,
    change,
    database,
    database_of_ada,
    environment,
    misused,
    refused,
    rows,
    run,
)

Run = Callable[..., Any]
WHY = ["--reason", "the site had a new page"]


def barred(database: Path) -> None:
    """Add an exit of ada's that a finding has barred."""
    ((user,),) = rows(database, "SELECT id FROM users")
    for statement in (
        f"""
        INSERT INTO devices (id, user_id, token_hash, name, hostname, device_type, created_at)
        VALUES ('d', '{user}', '', 'box', 'box', 'mini_pc', 1)
        """,
        f"""
        INSERT INTO exits (device_id, user_id, terms_hash, consented_at, connections,
            bytes_per_second, bytes_per_day, ports, min_price_per_gb, barred_at, barred_for)
        VALUES ('d', '{user}', 'x', 1, 16, 0, 0, '443', 0, 2, 'content')
        """,
        "INSERT INTO exit_canaries VALUES ('f', 'd', 'content', 'evil \x1b bytes', 2, NULL)",
    ):
        change(database, statement)


def test_a_finding_is_shown_and_made_void(run: Run, ada: None, database: Path) -> None:
    barred(database)
    [listed] = answer(run, ["case", "list", "canary"])["cases"]
    assert (listed["id"], listed["device"], listed["open"]) == ("f", "d", True)
    shown = answer(run, ["case", "show", "canary", "f"])
    assert {"name": "exit", "value": "barred"} in shown["facts"]
    assert "\x1b" not in run(["case", "show", "canary", "f"]).stdout
    done = answer(run, ["case", "void", "canary", "f", *WHY])
    assert done["voided"]["id"] == "f"
    assert answer(run, ["case", "void", "canary", "f", *WHY])["voided before"]["id"] == "f"
    refused(run(["case", "uphold", "canary", "f", *WHY]), "a decision is final")
    assert rows(database, "SELECT barred_at FROM exits") == [(None,)]
    assert answer(run, ["case", "list", "reward", "--user", "ada"])["cases"] == []
    assert run(["ledger", "audit"]).returncode == 0


def test_a_case_that_is_not_there_is_refused(run: Run, ada: None) -> None:
    refused(run(["case", "show", "sample", "none"]), "There is no such case.")
    refused(run(["case", "void", "reward", "none", *WHY]), "There is no such case.")
    refused(run(["case", "list", "sample", "--user", "ada"]), "no list by user", code=2)


def test_open_appeals_are_of_a_known_user_and_are_continued_by_nothing(run: Run, ada: None) -> None:
    open_ones = ["case", "list", "appeal", "--open"]
    assert answer(run, [*open_ones, "--user", "ada"])["cases"] == []
    refused(run([*open_ones, "--user", "nobody"]), "No user has the identifier")
    before = ["--before", "01890000-0000-7000-8000-000000000000"]
    refused(run([*open_ones, *before]), "not the list of --open", code=2)


@cases("words", [["list", "other"], ["void", "canary", "f"], ["show", "canary"]])
def test_a_wrong_call_is_misused(run: Run, ada: None, words: list[str]) -> None:
    misused(run(["case", *words]), "")
