"""One user's money, from a payment to a payout, by the pages; the operator decides by commands."""

import asyncio
import csv
from pathlib import Path

from support.console.browser import Visit
from support.console.console import opened
from support.daemons import process
from support.daemons.earning import work
from support.database import sqlite
from support.payments.taking import Shop, shop


async def operate(folder: Path, *arguments: str) -> str:
    """Run a command of the operator; return its output."""
    url = sqlite.database(folder)
    settings = {"PROXYD_PAYOUTS__METHODS": '["bank"]'}
    done = await asyncio.to_thread(process.run, url, "payouts", *arguments, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_money_comes_in_is_used_goes_back_and_is_paid_out(
    tmp_path: Path, visit: Visit
) -> None:
    async with shop(tmp_path) as taking:
        await told(taking, visit, tmp_path)


async def told(taking: Shop, visit: Visit, folder: Path) -> None:
    service, person = taking.service, await taking.service.person()
    tab = await opened(visit, service, person, "/console/wallet")
    # Pay on the page of the provider, and come back.
    await tab.click("$25.00")
    await tab.click("Go on to pay")
    await tab.until(f"location.origin === '{taking.stripe.url}'")
    await tab.until_text("25.00 USD")
    await tab.click("#pay")
    await tab.until_text("Paid: $25.00 came into your wallet.", ".notice")
    await tab.until_text("$25.00", "#balance")
    payment = await tab.run("location.pathname")
    # Buy.
    await tab.click("Buy a session")
    await tab.fill("How many GB", "5")
    await tab.until_text("$20.00", ".bill")
    await tab.click("Buy")
    await tab.click("I have stored it")
    await tab.until("location.pathname.startsWith('/console/sessions/')")
    # Have the rest back.
    await tab.goto(service.url + payment)
    await tab.until_text("At most $20.00")
    await tab.click("Send it back")
    await tab.until_text("$20.00 go back to the card or account that paid, and $0.00", "dialog")
    await tab.click("Send it back")
    await tab.until_text("Done", ".table")
    assert [each["amount"] for each in taking.stripe.refunds.values()] == [2_000]
    # Earn, and request a payout.
    await taking.confirm(person)
    await work(service, person, 2_000)
    await tab.goto(f"{service.url}/console/earnings")
    await tab.click("Add a payout method")
    await tab.fill("Name of the account's owner", "Ada Lovelace")
    await tab.fill("IBAN", "DE89370400440532013000")
    await tab.click("Add it")
    await tab.until_text("$17.50", ".bill")
    await tab.click("form [type=submit]")
    await tab.until_text("1,800 credits of your earnings are held, and $17.50 go to", "dialog")
    await tab.click("dialog [value=yes]")
    await tab.until_text("Requested", "#payouts")
    await tab.until_text("1,800 credits in payouts")
    # The operator approves and exports it.
    payouts = await service.call("GET", "/api/payouts", token=person.token)
    (payout,) = payouts.body["payouts"]
    await operate(folder, "approve", payout["id"])
    file = folder / "batch.csv"
    await operate(folder, "export", str(file))
    (line,) = csv.DictReader(file.read_text().splitlines())
    assert (line["payout_id"], line["amount_usd"]) == (payout["id"], "17.50")
    await tab.goto(f"{service.url}/console/earnings")  # another process has changed it
    await tab.until_text("Sent", "#payouts")
