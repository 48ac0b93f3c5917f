"""The pages of money: payments, refunds, receipts, earnings, payouts and prices."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.console.browser import Visit
from support.console.console import opened
from support.daemons.earning import work
from support.daemons.service import Service, running_in
from support.payments.taking import Shop, shop

WALLET = "/console/wallet"
FORM = "document.querySelector('.form')"


@pytest.fixture
async def taking(tmp_path: Path) -> AsyncIterator[Shop]:
    async with shop(tmp_path) as running:
        yield running


async def test_without_a_provider_the_pages_name_the_way_of_today(
    tmp_path: Path, visit: Visit
) -> None:
    site = {"name": "Tiny", "support": "help@example.com"}
    async with running_in(tmp_path, site=site) as service:
        tab = await opened(visit, service, await service.person(), WALLET)
        await tab.until_text("The operator of this service pays money in for you")
        await tab.until("document.querySelector('main a[href^=mailto]') !== null")
        assert await tab.run(f"{FORM} === null")
        await tab.goto(f"{service.url}/console/earnings")
        await tab.until_text("This service pays no earnings out")
        await tab.until_text("Nothing was earned yet")
        assert await tab.run(f"{FORM} === null")
        await tab.goto(f"{service.url}/console/prices")
        await tab.until_text("A credit is worth $0.01: one dollar is 100 credits.")
        await tab.until_text("The operator of this service pays money in for you")
        assert "Smallest payout" not in await tab.text("main")


async def test_an_amount_has_limits_and_its_effect_is_shown_before(
    taking: Shop, visit: Visit
) -> None:
    person = await taking.service.person(usd="3")
    tab = await opened(visit, taking.service, person, WALLET)
    await tab.until_text("From $5.00 to $100.00")
    await tab.until_text("$13.00", ".bill")
    await tab.click("$50.00")
    await tab.until_text("$53.00", ".bill")
    for wrong in ("4.99", "100.01", "-5", "1e9", "20.001"):
        await tab.fill("Amount in USD", wrong)
        await tab.click("Go on to pay")
        await tab.until("document.querySelector('.form .problem:not([hidden])') !== null")
        await tab.until_text("–", ".bill strong")
    assert not [sent for sent in tab.requests if sent.method == "POST" and "/pay" in sent.path]


async def test_the_page_of_a_payment_follows_it_through_a_reload(
    taking: Shop, visit: Visit
) -> None:
    person = await taking.service.person()
    payment_id = await taking.begin(person)
    tab = await opened(visit, taking.service, person, f"{WALLET}/pay/{payment_id}")
    await tab.until_text("The provider has not reported the money yet", ".notice")
    await tab.goto(f"{taking.service.url}{WALLET}/pay/{payment_id}")
    await tab.until_text("To the page of the provider")
    taking.stripe.pay(taking.stripe.session_of(payment_id))  # no notice arrives: the page looks
    await tab.until_text("Paid: $20.00 came into your wallet.", ".notice")
    await tab.until_text("$20.00", "#balance")
    looks = [sent for sent in tab.requests if sent.path == f"/api/payments/{payment_id}"]
    assert len(looks) < 10
    late = await taking.begin(person)
    taking.stripe.expire(taking.stripe.session_of(late))
    await tab.goto(f"{taking.service.url}{WALLET}/pay/{late}")
    await tab.until_text("Nothing was paid", ".notice")
    failed = await taking.begin(person)
    taking.stripe.pay(taking.stripe.session_of(failed), is_slow=True)
    taking.stripe.bounce(taking.stripe.session_of(failed))
    await tab.goto(f"{taking.service.url}{WALLET}/pay/{failed}")
    await tab.until_text("The bank refused this payment", ".notice")


async def test_a_refund_says_its_numbers_and_goes_once(taking: Shop, visit: Visit) -> None:
    person = await taking.service.person()
    payment_id = await taking.pay(person)
    await taking.service.buy(person, quota=5 * 10**9)
    tab = await opened(visit, taking.service, person, f"{WALLET}/pay/{payment_id}")
    await tab.until_text("At most $15.00")
    await tab.fill("Amount in USD", "15.01")
    await tab.click("Send it back")
    await tab.until("document.querySelector('.form .problem:not([hidden])') !== null")
    await tab.fill("Amount in USD", "7.42")
    await tab.until_text("$7.58", ".bill")
    await tab.click("Send it back")
    await tab.until_text("$7.42 go back to the card or account that paid, and $7.58 stay", "dialog")
    await tab.click("Cancel")
    assert not taking.stripe.refunds
    await tab.click("Send it back")
    await tab.until_text("This cannot be undone", "dialog")
    await tab.click("Send it back")
    await tab.until_text("At most $7.58")
    await tab.until_text("Done", ".table")
    assert [each["amount"] for each in taking.stripe.refunds.values()] == [742]


@pytest.mark.long
async def test_a_dispute_and_a_debt_are_explained(taking: Shop, visit: Visit) -> None:
    service, person = taking.service, await taking.service.person()
    payment_id = await taking.pay(person)
    await service.buy(person, quota=5 * 10**9)
    session_id = taking.stripe.session_of(payment_id)
    dispute = taking.stripe.disputes[taking.stripe.dispute(session_id)]
    await taking.stripe.notify("charge.dispute.created", dispute)
    tab = await opened(visit, service, person, f"{WALLET}/pay/{payment_id}")
    await tab.until_text("The bank of the payer disputes this payment", ".notice")
    await tab.goto(service.url + WALLET)
    await tab.until_text("Until the bank decides, the account buys nothing", ".notice")
    await tab.until_text("No payment is possible while one is disputed")
    assert await tab.run(f"{FORM} === null")


async def test_a_receipt_shows_names_as_text(taking: Shop, visit: Visit) -> None:
    person = await taking.service.person()
    payment_id = await taking.pay(person)
    tab = await opened(visit, taking.service, person, WALLET)
    await tab.until_text("Paid", ".table")
    await tab.click("Receipt")
    await tab.until_text("Receipt 1", ".card h2")
    shown = await tab.text(".card")
    assert "1 Road <b>" in shown
    assert await tab.run("document.querySelector('.card b') === null")
    for text in ("VAT, 20%", "$16.67", "$3.33", "$20.00", person.email, payment_id):
        assert text in shown
    other = await taking.service.person()
    visit.expect("404")
    theirs = await taking.pay(other)
    await tab.goto(f"{taking.service.url}{WALLET}/receipt/{theirs}")
    await tab.until("document.querySelector('main .failed') !== null")


async def test_an_invoice_has_the_particulars_of_the_form(taking: Shop, visit: Visit) -> None:
    person = await taking.service.person()
    tab = await opened(visit, taking.service, person, WALLET)
    await tab.until_text("Your documents are receipts")
    await tab.click("Set your particulars")
    await tab.fill("Name or company", "Lovelace <b>")
    await tab.fill("Address", "1 Engine Road\nLondon")
    await tab.click("Save the particulars")  # without a country
    await tab.until("document.querySelector('.form .problem:not([hidden])') !== null")
    await tab.fill("Country", "GB")
    await tab.fill("Tax number", "=GB 123")
    await tab.click("Save the particulars")
    await tab.until("document.querySelector('[name=tax_number]')?.ariaInvalid === 'true'")
    await tab.fill("Tax number", "GB 123")
    await tab.click("Save the particulars")
    await tab.until_text("Change your particulars")
    await tab.until_text("United Kingdom", "main")
    payment_id = await taking.pay(person)
    await tab.click("Remove them")
    await tab.until_text("Your documents are receipts")
    await tab.goto(f"{taking.service.url}{WALLET}/receipt/{payment_id}")
    await tab.until_text("Invoice 1", ".card h2")
    shown = await tab.text(".card")
    for line in ("Lovelace <b>", "1 Engine Road", "United Kingdom", "Tax number: GB 123"):
        assert line in shown
    assert person.email not in shown


async def test_a_card_is_saved_and_the_top_up_is_switched_on_and_off(
    taking: Shop, visit: Visit
) -> None:
    person = await taking.service.person(usd="50")
    tab = await opened(visit, taking.service, person, WALLET)
    await tab.until_text("No card is saved.")
    await tab.click("Save a card")
    await tab.until("document.title === 'Stand-in'")
    await tab.click("Save the card")
    await tab.until_text("visa …4242", "main")
    await tab.fill("When the wallet has less than (USD)", "10")
    await tab.fill("At most in a calendar month (USD)", "60")
    await tab.click("Switch it on")
    await tab.until_text("$0.00 of $60.00")
    await tab.click("Switch it off")
    await tab.until_text("The automatic top-up is off.")
    plan = {"threshold_usd": 5, "amount_usd": 20, "month_usd": 60}
    for method, body, shown in (("PUT", plan, "true"), ("DELETE", None, "false")):
        await tab.settled()  # a press that is held is not aimed again
        await tab.hold("Remove the card")  # while its neighbour comes or goes
        answer = await taking.service.call(method, "/api/top-up", body, token=person.token)
        assert answer.status == 200
        await tab.until(f"document.body.innerText.includes('Switch it off') === {shown}")
        await tab.settled()
        await tab.release("Remove the card")
        await tab.click("dialog [value=no]")
    await tab.click("Remove the card")
    await tab.until_text("The provider removes the card", "dialog")
    await tab.click("dialog [value=yes]")
    await tab.until_text("No card is saved.")


async def test_rules_stand_before_the_request_and_methods_are_checked(
    taking: Shop, visit: Visit
) -> None:
    service, person = taking.service, await taking.service.person(usd="50")
    tab = await opened(visit, service, person, "/console/earnings")
    await tab.until(
        "document.querySelector('[data-rule=email_confirmed]')?.dataset.met === 'false'"
    )
    await tab.until_text("You can ask once every rule is met.")
    await taking.confirm(person)
    await work(service, person, 2_000)
    await tab.goto(service.url + WALLET)
    await tab.until_text("earned: +1,800 credits", ".table")
    await tab.goto(f"{service.url}/console/earnings")
    await tab.until("document.querySelector('[data-rule=minimum_earned]')?.dataset.met === 'true'")
    await tab.click("Add a payout method")
    await tab.fill("Name of the account's owner", "Ada <b>")
    await tab.fill("IBAN", "DE89370400440532013001")
    await tab.click("Add it")
    await tab.until("document.querySelector('.form .problem:not([hidden])') !== null")
    await tab.fill("IBAN", "DE89370400440532013000")
    await tab.click("Add it")
    await tab.until_text("…3000", "table")
    assert "0440532" not in await tab.text("main")
    await tab.fill("Amount in credits", "400")
    await tab.until_text("–", ".bill strong")  # less than the smallest payout
    await tab.fill("Amount in credits", "1000")
    await tab.until_text("$9.50", ".bill strong")
    await tab.click("form [type=submit]")
    await tab.until_text("1,000 credits of your earnings are held, and $9.50 go to", "dialog")
    await tab.click("dialog [value=yes]")
    await tab.until_text("Requested", "#payouts")
    await tab.until_text("1,800 credits earned = 800 credits available")
    await tab.click("Cancel the payout of 1,000 credits")
    await tab.until_text("1,000 credits come back", "dialog")
    await tab.click("Yes, cancel it")
    await tab.until_text("Cancelled", "#payouts")
    await tab.until_text("1,800 credits earned = 1,800 credits available")
    await tab.click("1,800 credits available")
    await tab.until_text("-1,000 credits", ".table")
    assert await tab.run("document.querySelectorAll('.table tbody tr').length") == 3
    await tab.goto(f"{service.url}/console/earnings/lines")
    await tab.until_text("+1,800 credits", ".table")
    await tab.until_text("1,800 credits earned", "main .identity")
    await tab.click("To the earnings")
    await tab.click("Add a payout method")
    await tab.click("Stripe")
    await tab.click("Connect at Stripe")
    await tab.until("document.title === 'Setup'")
    await tab.goto(f"{service.url}/console/earnings")
    await tab.until_text("Continue at Stripe", "table")


async def test_prices_are_those_of_the_api(service: Service, visit: Visit) -> None:
    tab = await opened(visit, service, await service.person(), "/console/prices")
    prices = (await service.call("GET", "/api/prices")).body
    assert prices["work"]["fee_percent"] == 10
    await tab.until_text("10%", "main")
    await tab.until_text("Every GPU", "table")
    await tab.until_text("100 credits", "table")
