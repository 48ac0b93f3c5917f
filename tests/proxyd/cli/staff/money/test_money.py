# ruff: noqa: F811 - fixtures of another file
"""Commands that move money, and those of the second person: output, JSON, exit status, refusals."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.base.cases import cases

from market.money.money import MICRO, Currency
from market.staff.base.roles import Machine
from market.staff.money import money
from proxyd.loop import runner
from proxyd.ops.base.books import context_of
from storage.engines.open import open_store
from tests.proxyd.cli.staff.test_commands import ME, answer
from tests.proxyd.cli.test_commands import (  # noqa: F401 - fixtures
    EMAIL,
    ada,
    database,
    database_of_ada,
    environment,
    misused,
    refused,
    rows,
    run,
)

Run = Callable[..., Any]
BECAUSE = ["--reason", "asked by telephone"]
CORRECT = ["money", "correct", "ada"]
REFUND = ["money", "refund", EMAIL]


@pytest.fixture
def paid(run: Run, ada: None) -> None:
    """Begin with a deposit of 20 USD."""
    assert run(["wallet", "deposit", EMAIL, "--usd", "20", "--reference", "inv-1"]).returncode == 0


def corrected(amount: str, reference: str, currency: str = "usd") -> list[str]:
    return [*CORRECT, amount, "--currency", currency, "--reference", reference, *BECAUSE]


def refunded(amount: str, reference: str, deposit: str = "inv-1") -> list[str]:
    return [*REFUND, amount, "--deposit", deposit, "--reference", reference, *BECAUSE]


def test_a_refund_and_corrections_are_posted_once(run: Run, paid: None) -> None:
    done = answer(run, refunded("7.42", "r-1"))["refunded"]
    assert (done["amount"], done["currency"]) == ("-7.42", "usd")
    assert answer(run, refunded("7.42", "r-1"))["refunded before"]["id"] == done["id"]
    assert answer(run, corrected("+5", "c-1"))["corrected"]["amount"] == "5.00"
    assert answer(run, corrected("-0.5", "c-2"))["corrected"]["amount"] == "-0.50"
    assert answer(run, corrected("3", "c-1", "credit"))["corrected"]["currency"] == "credit"
    history = answer(run, ["money", "history", "ada"])
    assert history["balances"] == [
        {"currency": "usd", "available": "17.08", "held": "0.00", "owed": "0.00"},
        {"currency": "credit", "available": "3.00", "held": "0.00", "owed": "0.00"},
    ]
    kinds = ["correction", "correction", "correction", "deposit_refund", "deposit"]
    assert [each["kind"] for each in history["transactions"]] == kinds
    second = history["transactions"][1]["id"]
    rest = answer(run, ["money", "history", "ada", "--before", second, "--limit", "1"])
    assert [each["reference"] for each in rest["transactions"]] == ["c-1"]
    assert "inv-1" in run(["money", "history", "ada"]).stdout
    changes = [each["changes"] for each in answer(run, ["log", "--user", "ada"])["log"]]
    assert changes[0]["available_credit"] == ["0.00", "3.00"]
    assert changes[1]["available_usd"] == ["17.58", "17.08"]
    for command in (["user", "show", "ada"], ["log", "--user", "ada"]):
        assert "available_usd: 17.58 to 17.08" in run(command).stdout
    assert run(["ledger", "audit"]).returncode == 0


async def asked_by_another(database: Path) -> None:
    """Ask for a correction as another Unix user."""
    store = await open_store(f"sqlite:///{database}")
    await money.correct(
        context_of(store),
        Machine("another"),
        EMAIL,
        dict.fromkeys(Currency, MICRO),
        amount=50_000_001,
        currency=Currency.USD,
        reference="c-2",
        why="asked by telephone",
    )
    await store.close()


def test_an_amount_above_the_limit_waits_and_its_author_cannot_approve(
    run: Run, paid: None, database: Path
) -> None:
    done = run(corrected("50.000001", "c-1"))
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith("waits: approval ")
    assert "\nanother person decides: proxyd approve ID" in done.stdout
    [request] = answer(run, ["approvals"])["approvals"]
    assert (request["state"], request["amount"]) == ("waits", "50.000001")
    assert (request["by"], request["reason"]) == (f"unix:{ME}", "asked by telephone")
    [problem] = answer(run, ["user", "show", "ada"])["problems"]
    assert (problem["kind"], problem["id"]) == ("waits for a second person", request["id"])
    again = run([*corrected("50.000001", "c-1"), "--json"])
    assert (again.returncode, request["id"] in again.stdout) == (3, True)
    refused(run(["approve", request["id"]]), "a second person has to approve it")
    refused(run(["approve", "none"]), "No act with this identifier waits")
    assert run(["refuse", request["id"], *BECAUSE]).returncode == 0
    runner.run(asked_by_another(database))
    [request] = answer(run, ["approvals"])["approvals"]
    assert request["by"] == "unix:another"
    approved = answer(run, ["approve", request["id"], "--reason", "seen"])["approved"]
    assert approved["amount"] == "50.000001"
    refused(run(["approve", request["id"]]), "was approved before")
    assert run(["approvals"]).stdout == "approvals: none\n"
    [decided, _] = answer(run, ["approvals", "--all"])["approvals"]
    assert (decided["state"], decided["decided_by"]) == ("approved", f"unix:{ME}")
    assert run(["ledger", "audit"]).returncode == 0


def test_a_deposit_above_the_limit_waits_also_as_the_first_one(run: Run, paid: None) -> None:
    deposit = ["wallet", "deposit", "ada", "--reference", "inv-2", *BECAUSE]
    done = run([*deposit, "--usd", "30.01", "--credits", "5"])
    assert done.returncode == 3
    # As the caller has named the user: the address of another name is masked.
    assert done.stdout.startswith("deposited; ada has 20.00 usd, 5.00 credit\nwaits: approval")
    assert done.stdout.count("; ada has 20.00 usd, 5.00 credit\n") == 2
    [request] = answer(run, ["approvals"])["approvals"]
    assert (request["action"], request["amount"]) == ("money.deposit", "30.01")
    assert answer(run, ["refuse", request["id"], *BECAUSE])["withdrawn"]
    report = json.loads(run([*deposit, "--usd", "30", "--credits", "5", "--json"]).stdout)
    assert [each["currency"] for each in report["deposited"]] == ["usd"]
    assert [each["currency"] for each in report["deposited before"]] == ["credit"]
    create = ["user", "create", "b@example.com", "--username", "b", "--password-stdin"]
    made = run([*create, "--usd", "1"], b"long enough\n")
    assert "0.00 usd, 0.00 credit\n1.00 usd waits: approval " in made.stdout
    assert made.returncode == 3
    assert run(["ledger", "audit"]).returncode == 0


def test_a_lone_operator_raises_the_limit_or_withdraws(run: Run, paid: None) -> None:
    assert run(corrected("60", "c-1")).returncode == 3
    [request] = answer(run, ["approvals"])["approvals"]
    refused(run(["refuse", request["id"], "--reason", " "]), "1 to 500", code=2)
    withdrawn = answer(run, ["refuse", request["id"], *BECAUSE])["withdrawn"]
    assert withdrawn["action"] == "money.correct"
    assert run(corrected("60", "c-1"), PROXYD_STAFF__APPROVAL_USD="80").returncode == 0
    assert run(corrected("0.01", "c-2"), PROXYD_STAFF__APPROVAL_USD="80").returncode == 3


@cases(
    ("arguments", "words", "code"),
    [
        (refunded("21", "r"), "20.00 usd of this deposit", 1),
        (refunded("1", "r", "none"), "no such deposit", 1),
        (refunded("0", "r"), "above zero", 2),
        (refunded("1", "a b"), "A reference has", 2),
        (refunded("1", "eve@example.com"), "A reference has", 2),
        (corrected("-21", "c"), "has 20.00 usd available", 1),
        (corrected("0", "c"), "zero", 2),
        (corrected("1", ""), "A reference has", 2),
        (["wallet", "deposit", "ada", "--usd", "1", "--reference", ""], "A reference has", 2),
        (["money", "history", "nobody"], "e-mail address or name 'nobody'", 1),
        (["refuse", "none", *BECAUSE], "No act with this identifier waits", 1),
        (["approve", ""], "1 to 254", 2),
    ],
)
def test_a_refusal_is_one_line_and_moves_nothing(
    run: Run, paid: None, database: Path, arguments: list[str], words: str, code: int
) -> None:
    refused(run(arguments), words, code=code)
    assert rows(database, "SELECT COUNT(*) FROM transfers") == [(1,)]
    assert rows(database, "SELECT COUNT(*) FROM staff_log") == [(1,)]


@cases("amount", ["", "x", "--5", "+-5", "1e400", "NaN", "-NaN", "0.0000001", "-", "+"])
def test_a_text_that_is_no_amount_is_misuse(run: Run, amount: str) -> None:
    misused(run([*CORRECT, "--currency", "usd", "--reference", "c", *BECAUSE, "--", amount]), "")


def test_a_place_in_a_list_is_an_identifier(run: Run) -> None:
    for command in (["money", "history", EMAIL], ["approvals"], ["payments", "list"]):
        misused(run([*command, "--before", "xyz"]), "'xyz' is not an identifier")


def test_a_deposit_takes_no_reference_with_a_person_in_it(
    run: Run, paid: None, database: Path
) -> None:
    for reference in ("for ada", "ada@example.com", "x" * 65, ""):
        done = run(["wallet", "deposit", EMAIL, "--usd", "1", "--reference", reference])
        assert done.returncode == 2, done
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER transfers_never_updated")
        connection.execute(
            "UPDATE transfers SET business_key = 'deposit:inv 1:usd'"
            " WHERE business_key = 'deposit:inv-1:usd'"
        )
    done = run(["wallet", "deposit", EMAIL, "--usd", "20", "--reference", "inv 1"])
    assert done.stdout.startswith("was deposited before")
