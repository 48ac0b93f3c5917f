# ruff: noqa: F811 - fixtures of another file
"""Commands about payouts: from the request to the outcome, files, and refusals."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support.base.cases import cases
from support.base.clock import Clock
from support.market.market import SECRET, Market
from support.market.payouts import plain_payout

from market.base.states import PayoutStatus
from market.payouts import files
from market.payouts.files import Format
from market.payouts.terms import RejectReason
from proxyd.cli.staff.money import paying
from proxyd.cli.staff.money.paying_parsers import FORMATS, REASONS, STATES
from proxyd.loop import runner
from storage.engines.open import open_store
from tests.proxyd.cli.staff.test_commands import answer
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

Run = Callable[..., Any]


@pytest.fixture
def payouts(run: Run, environment: dict[str, str], ada: None) -> list[str]:
    """Begin with three payouts of one user, of 10 USD each."""
    environment["PROXYD_AUTH__SIGNING_KEY"] = SECRET.decode()

    async def make() -> list[str]:
        store = await open_store(environment["PROXYD_STORAGE__URL"])
        market = Market(store, Clock())
        try:
            user = await market.person()
            return [(await plain_payout(market, user)).id for _ in range(3)]
        finally:
            market.passwords.close()
            await store.close()

    return runner.run(make())


def test_the_parsers_know_the_words_of_the_market() -> None:
    assert set(STATES) == set(PayoutStatus)
    assert set(REASONS) == set(RejectReason)
    assert set(FORMATS) == set(files.FORMATS)
    assert set(files.FORMATS.values()) == set(Format)


def test_payouts_are_decided_sent_and_booked(
    run: Run, payouts: list[str], tmp_path: Path, database: Path
) -> None:
    first, second, third = payouts
    listed = answer(run, ["payouts", "list"])["payouts"]
    assert [(each["id"], each["net"]) for each in listed] == [(each, "10.00") for each in payouts]
    shown = answer(run, ["payouts", "show", first])
    assert shown["method"]["iban"] == "DE89370400440532013000"
    assert shown["sources"][0]["has_deposited"] is True
    for each in (first, second):
        assert answer(run, ["payouts", "approve", each])["approved"]["amount"] == "10.00"
    rejected = answer(run, ["payouts", "reject", third, "--reason", "name_mismatch"])["rejected"]
    assert (rejected["state"], rejected["reason"]) == ("rejected", "name_mismatch")
    file, again = tmp_path / "batch.csv", tmp_path / "again.csv"
    batch = answer(run, ["payouts", "export", str(file)])["exported"]
    assert (batch["payouts"], batch["usd"]) == (2, "20.00")
    assert file.stat().st_mode & 0o777 == 0o600
    answer(run, ["payouts", "export", str(again), "--batch", batch["batch"]])
    assert again.read_bytes() == file.read_bytes()
    none = tmp_path / "none.csv"
    assert answer(run, ["payouts", "export", str(none)])["exported"] is None
    assert not none.exists()
    table = file.read_text().replace("10.00,,", "10.00,paid,", 1)
    file.write_text(table.replace("10.00,,", "10.00,failed,returned", 1))
    for word in ("", " before"):
        booked = answer(run, ["payouts", "import", str(file)])["imported"]
        assert [each["result"] for each in booked] == [f"paid{word}", f"failed{word}"]
    assert rows(database, "SELECT COUNT(*) FROM payouts WHERE state = 'paid'") == [(1,)]
    wrong = tmp_path / "wrong.csv"
    wrong.write_text(f"payout_id,amount_usd,outcome\n{first},11.00,paid\n")
    done = run(["payouts", "import", str(wrong)])
    assert done.returncode == 1
    assert "another amount" in done.stdout
    wrong.write_text(f"payout_id,amount_usd,outcome,reason\n{first},10.00,failed,refused\n")
    done = run(["payouts", "import", str(wrong)])
    assert done.returncode == 1
    assert "comes back as returned or unclaimed, not as refused" in done.stdout
    wrong.write_text(f"payout_id,amount_usd,outcome,reason\n{first},10.00,paid,returned\n")
    refused(run(["payouts", "import", str(wrong)]), "Line 2: an outcome of paid has no reason")
    assert run(["ledger", "audit"]).returncode == 0


def test_refusals_are_one_line_and_move_nothing(
    run: Run, payouts: list[str], tmp_path: Path, database: Path
) -> None:
    first = payouts[0]
    refused(run(["payouts", "show", "nothing"]), "no such payout")
    refused(run(["payouts", "export", str(tmp_path / "no" / "file")]), "cannot be written", code=2)
    exists = tmp_path / "exists"
    exists.write_text("kept")
    refused(run(["payouts", "export", str(exists)]), "cannot be written", code=2)
    assert exists.read_text() == "kept"
    refused(run(["payouts", "import", str(tmp_path / "nothing")]), "cannot be read", code=2)
    refused(run(["payouts", "export", str(tmp_path / "x"), "--batch", first]), "no such batch")
    answer(run, ["payouts", "approve", first])
    pain = ["payouts", "export", str(tmp_path / "x"), "--format", "pain001"]
    refused(run(pain), "payouts.debtor_name", code=2)
    assert not (tmp_path / "x").exists()
    assert rows(database, "SELECT COUNT(*) FROM payout_batches") == [(0,)]
    debtor = {"PROXYD_PAYOUTS__DEBTOR_NAME": "Proxyd", "PROXYD_PAYOUTS__DEBTOR_IBAN": "DE8937"}
    assert run([*pain, "--eur-rate", "0.92"], **debtor).returncode == 0
    assert 'Ccy="EUR">9.20<' in (tmp_path / "x").read_text()


def test_a_file_is_written_in_no_other_form_than_asked_for(
    run: Run, payouts: list[str], tmp_path: Path
) -> None:
    answer(run, ["payouts", "approve", payouts[0]])
    file = tmp_path / "batch"
    export = ["payouts", "export", str(file)]
    refused(run([*export, "--eur-rate", "0.92"]), "A table is in USD", code=2)
    batch = answer(run, export)["exported"]["batch"]
    again = ["payouts", "export", str(tmp_path / "again"), "--batch", batch]
    for more in (["--format", "csv"], ["--format", "pain001"], ["--eur-rate", "0.92"]):
        refused(run([*again, *more]), "A batch keeps its format", code=2)
    assert not (tmp_path / "again").exists()


def test_a_batch_whose_file_has_no_room_is_written_again(
    run: Run, payouts: list[str], tmp_path: Path, database: Path
) -> None:
    def begun(path: Path) -> int:
        path.touch()
        return os.open("/dev/full", os.O_WRONLY)

    answer(run, ["payouts", "approve", payouts[0]])
    file = tmp_path / "batch.csv"
    with patch.object(paying, "_begun", begun):
        done = run(["payouts", "export", str(file)])
    ((batch,),) = rows(database, "SELECT id FROM payout_batches")
    refused(done, f"{file} cannot be written: No space left on device; ", f"--batch {batch}")
    assert not file.exists()
    answer(run, ["payouts", "export", str(file), "--batch", str(batch)])
    assert payouts[0] in file.read_text()


@cases("rate", ["0", "0.000000", "0.0092", "92", "-1", "x", ""])
def test_a_rate_is_near_one(run: Run, ada: None, tmp_path: Path, rate: str) -> None:
    file = tmp_path / "x"
    done = run(["payouts", "export", str(file), "--format", "pain001", f"--eur-rate={rate}"])
    assert done.returncode == 2
    assert "rate" in done.stderr
    assert not file.exists()


def test_a_check_of_an_identity_is_recorded_and_removed(run: Run, ada: None) -> None:
    verify = ["user", "verify", "ada", "--reason", "saw the passport"]
    assert "verified" in answer(run, verify)
    assert answer(run, ["user", "show", verify[2]])["user"]["identity_checked"] is True
    assert "verified before" in answer(run, verify)
    assert "not verified" in answer(run, [*verify, "--undo"])
