# ruff: noqa: F811 - fixtures of another file
"""Commands about payments by a provider: output, the way back through the provider, refusals."""

from pathlib import Path

import pytest
from support.base.clock import Clock
from support.market.market import Market
from support.payments.bank import Bank

from market.money.money import MICRO
from proxyd.loop import runner
from storage.accounts import users
from storage.engines.open import open_store
from storage.engines.place import SQLITE
from tests.proxyd.cli.staff.money.test_money import BECAUSE, Run
from tests.proxyd.cli.staff.test_commands import answer
from tests.proxyd.cli.test_commands import (  # noqa: F401 - fixtures
    EMAIL,
    ada,
    database,
    database_of_ada,
    environment,
    refused,
    run,
)


async def used(
    database: Path, bank: Bank, clock: Clock, payment_id: str = "", *, is_doubtful: bool = False
) -> str:
    """Have Ada pay, or the sweeper of a daemon look at her payment; return the payment."""
    store = await open_store(f"{SQLITE}{database}")
    market = Market(store, clock, providers={"bank": bank})
    try:
        if payment_id:
            clock.now += 1_000_000_000
            await market.payments.fulfil(payment_id)
            return payment_id
        user = await store.read(users.find_by_email, EMAIL)
        assert user is not None
        made = await market.payments.create(user.id, 20 * MICRO)
        bank.pay(made.id)
        if is_doubtful:
            bank.set(made.id, amount=21 * MICRO)
        await market.payments.find(user.id, made.id)
        return made.id
    finally:
        market.passwords.close()
        await store.close()


@pytest.mark.usefixtures("ada")
def test_a_payment_is_listed_shown_and_refunded_by_the_daemon(run: Run, database: Path) -> None:
    bank, clock = Bank(), Clock()
    payment_id = runner.run(used(database, bank, clock))
    [listed] = answer(run, ["payments", "list", "--status", "paid"])["payments"]
    assert (listed["id"], listed["amount"], listed["status"]) == (payment_id, "20.00", "paid")
    assert answer(run, ["payments", "list", "--user", "ada", "--status", "open"])["payments"] == []
    refund = ["payments", "refund", payment_id, "7.42", "--reference", "r-1", *BECAUSE]
    done = answer(run, refund)["refunded"]
    assert answer(run, refund)["refunded before"]["id"] == done["id"]
    [waiting] = answer(run, ["payments", "show", payment_id])["returns"]
    assert (waiting["kind"], waiting["status"], waiting["amount"]) == ("staff", "pending", "7.42")
    assert answer(run, ["payments", "look", payment_id, *BECAUSE])["looking"]["id"] == payment_id
    runner.run(used(database, bank, clock, payment_id))
    shown = answer(run, ["payments", "show", payment_id])
    assert (shown["returns"][0]["status"], shown["payment"]["receipt"]) == ("done", 1)
    refused(run(["payments", "show", "none"]), "no such payment")
    doubtful = runner.run(used(database, bank, clock, is_doubtful=True))
    [waiting] = answer(run, ["payments", "doubtful"])["payments"]
    assert (waiting["id"], waiting["doubt"]) == (doubtful, "the amount is 21.00")
    credit = ["payments", "credit", doubtful, "--amount", "21", *BECAUSE]
    assert answer(run, credit)["accepted"]["amount"] == "21.00"
    refused(run(["payments", "give-up", doubtful, *BECAUSE]), "accepted before")
    runner.run(used(database, bank, clock, doubtful))
    assert answer(run, ["payments", "show", doubtful])["payment"]["status"] == "paid"
    forgive = ["payments", "forgive", EMAIL, "1", "--reference", "f-1", *BECAUSE]
    refused(run(forgive), "The user owes 0.00 USD")
    of_earnings = [*forgive, "--currency", "credit"]
    refused(run(of_earnings), "The user owes 0.00 credits")
    debt = ["money", "correct", EMAIL, "-1", "--currency", "credit", "--debt"]
    refused(run([*debt, "--reference", "d-1", *BECAUSE]), "has earned 0.00 credit in all")
    over = ["payments", "refund", payment_id, "13", "--reference", "r-2", *BECAUSE]
    refused(run(over), "12.58 usd of this deposit")
    assert run(["ledger", "audit"]).returncode == 0
