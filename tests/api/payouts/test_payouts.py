"""Payouts by the API: terms with ticks, methods, requests, other people's payouts, and keys."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.base.cases import cases
from support.daemons.earning import work
from support.daemons.service import Answer, Person, Service
from support.payments import taking

from market.money.money import Currency
from market.payouts import steps
from market.payouts.terms import MethodKind
from storage.accounts import users
from storage.engines.store import Transaction

BANK = {"kind": "bank", "holder": "Ada Lovelace", "iban": "DE89370400440532013000"}
EARNED = 1_800.0


@dataclass
class Earner:
    """A user with earned credits who meets all rules, and the user's payout method."""

    person: Person
    method_id: str


def offer(service: Service, **changes: Any) -> None:
    """Offer payouts, without waiting times."""
    payouts = service.daemon.market.payouts
    methods = frozenset((MethodKind.BANK, MethodKind.PAYPAL, MethodKind.MANUAL))
    changes = {"methods": methods, "method_wait_seconds": 0, "first_wait_seconds": 0, **changes}
    payouts.terms = replace(payouts.terms, **changes)


async def earner(service: Service) -> Earner:
    offer(service)
    person = await service.person()

    async def confirm(tx: Transaction) -> None:
        await users.set_email_verified(tx, person.user_id, 1)

    await service.daemon.store.write(confirm)
    await work(service, person, 2_000)
    added = await service.call("POST", "/api/payouts/methods", BANK, token=person.token)
    return Earner(person, added.body["method"]["id"])


async def ask(service: Service, who: Earner, amount: object = 1_000, **more: Any) -> Answer:
    body = {"amount": amount, "currency": "credit", "method_id": who.method_id}
    return await service.call("POST", "/api/payouts", body, token=who.person.token, **more)


async def test_the_terms_say_what_is_missing_before_anybody_asks(service: Service) -> None:
    person = await service.person(usd="10", credit="5000")
    terms = (await service.call("GET", "/api/payouts/terms", token=person.token)).body
    assert terms["is_offered"] is False
    refused = await service.call("POST", "/api/payouts/methods", BANK, token=person.token)
    assert refused.body["error"]["code"] == "payouts_not_offered"
    offer(service)
    refused = await service.call("POST", "/api/payouts/connect", token=person.token)
    assert refused.body["error"]["message"] == "This service pays no earnings out by Stripe."
    terms = (await service.call("GET", "/api/payouts/terms", token=person.token)).body
    unmet = {each["rule"] for each in terms["rules"] if not each["is_met"]}
    assert unmet == {"email_confirmed", "method_ready", "minimum_earned", "first_earning_age"}
    assert terms["withdrawable"] == {
        "usd": {"amount": 0, "usd": 0},
        "credit": {"amount": 0, "usd": 0},
    }
    assert (terms["minimum_usd"], terms["credit_usd"]) == (5, 0.01)
    assert terms["decides_within_s"] == 48 * 3_600


async def test_a_payout_is_requested_shown_and_cancelled(service: Service) -> None:
    who = await earner(service)
    terms = (await service.call("GET", "/api/payouts/terms", token=who.person.token)).body
    assert all(each["is_met"] for each in terms["rules"])
    assert terms["withdrawable"]["credit"] == {"amount": EARNED, "usd": 18}
    made = await ask(service, who, 1_000.5, headers={"Idempotency-Key": "once"})
    again = await ask(service, who, 1_000.5, headers={"Idempotency-Key": "once"})
    assert made.status == 200, made.body
    assert again.body == made.body
    payout = made.body["payout"]
    assert (payout["state"], payout["amount"], payout["usd"]) == ("requested", 1_000, 10)
    assert (payout["net_usd"], payout["reason"], payout["ended_at"]) == (10, None, None)
    earned = (await service.call("GET", "/api/earnings", token=who.person.token)).body
    assert (earned["owed_usd"], earned["owed_credit"]) == (0, 0)
    found = earned["credit"]
    amounts = {name: each["amount"] for name, each in found.items()}
    assert amounts.pop("earned") == sum(amounts.values()) == EARNED
    assert amounts["in_payout"] == 1_000
    for name, each in found.items():
        listed = await service.call("GET", each["lines"], token=who.person.token)
        assert sum(line["amount"] for line in listed.body["lines"]) == found[name]["amount"]
    found_payouts = (
        await service.call("GET", found["in_payout"]["lines"], token=who.person.token)
    ).body["lines"]
    assert [(line["id"], line["kind"]) for line in found_payouts] == [(payout["id"], "payout")]
    for wrong in ("currency=credit", "currency=eur&term=paid", "currency=usd&term=owed"):
        refused = await service.call("GET", f"/api/earnings/lines?{wrong}", token=who.person.token)
        assert refused.code == "invalid_field"
    path = f"/api/payouts/{payout['id']}"
    for _ in range(2):
        ended = await service.call("POST", f"{path}/cancel", token=who.person.token)
        assert ended.body["payout"]["state"] == "cancelled"
    listed = (await service.call("GET", "/api/payouts", token=who.person.token)).body
    assert [each["state"] for each in listed["payouts"]] == ["cancelled"]


async def test_payouts_and_methods_of_others_do_not_exist(service: Service) -> None:
    who, other = await earner(service), await earner(service)
    payout_id = (await ask(service, who)).body["payout"]["id"]
    for method, path in (
        ("GET", f"/api/payouts/{payout_id}"),
        ("POST", f"/api/payouts/{payout_id}/cancel"),
        ("DELETE", f"/api/payouts/methods/{who.method_id}"),
        ("GET", "/api/payouts/nothing"),
    ):
        answer = await service.call(method, path, token=other.person.token)
        assert answer.status == 404, path
    stolen = await ask(service, Earner(other.person, who.method_id))
    assert stolen.body["error"]["code"] == "payout_method_not_found"
    busy = await service.call(
        "DELETE", f"/api/payouts/methods/{who.method_id}", token=who.person.token
    )
    assert busy.body["error"]["code"] == "payout_method_in_use"


@cases(
    ("amount", "code"),
    [
        (0, "payout_too_small"),
        (499.99, "payout_too_small"),
        (1_801, "payout_too_large"),
        (999_999_999, "payout_too_large"),
        (-1, "invalid_field"),
        ("1e400", "invalid_field"),
        (None, "invalid_field"),
    ],
)
async def test_amounts_that_cannot_be_paid_are_refused(
    service: Service, amount: object, code: str
) -> None:
    who = await earner(service)
    refused = await ask(service, who, amount)
    assert (refused.status, refused.body["error"]["code"]) == (400, code)


@cases(
    ("body", "field"),
    [
        ({**BANK, "iban": "DE89370400440532013001"}, "iban"),
        ({**BANK, "iban": "DE8937040044053201300"}, "iban"),
        ({**BANK, "iban": "\uff24\uff2589370400440532013000"}, "iban"),
        ({**BANK, "holder": " "}, "holder"),
        ({**BANK, "holder": "a\u202eb"}, "holder"),
        ({**BANK, "bic": "NOT A BIC"}, "bic"),
        ({"kind": "paypal", "email": "nobody"}, "email"),
        ({"kind": "paypal", "email": f"{'x' * 116}@example.com"}, "email"),
        ({"kind": "manual", "text": "x"}, "text"),
        ({"kind": "stripe"}, "kind"),
    ],
)
async def test_methods_with_wrong_details_are_refused(
    service: Service, body: dict[str, str], field: str
) -> None:
    offer(service)
    person = await service.person()
    refused = await service.call("POST", "/api/payouts/methods", body, token=person.token)
    assert refused.body["error"]["code"] == "invalid_field"
    assert refused.field == field


async def test_details_are_sealed_and_shown_masked(service: Service) -> None:
    offer(service)
    person = await service.person()
    for body in (
        BANK,
        {"kind": "paypal", "email": "ada@example.com"},
        {"kind": "manual", "text": "Wise tag @ada42"},
    ):
        await service.call("POST", "/api/payouts/methods", body, token=person.token)
    shown = (await service.call("GET", "/api/payouts/methods", token=person.token)).body
    assert [each["shown"] for each in shown["methods"]] == ["DE…3000", "a…@example.com", "…42"]

    async def stored(tx: Transaction) -> list[str]:
        return await tx.all(str, "SELECT sealed || shown FROM payout_methods")

    texts = " ".join(await service.daemon.store.read(stored))
    assert "370400440532" not in texts
    assert "ada@" not in texts
    for _ in range(2):
        await service.call("POST", "/api/payouts/methods", BANK, token=person.token)
    full = await service.call("POST", "/api/payouts/methods", BANK, token=person.token)
    assert full.body["error"]["code"] == "too_many_payout_methods"


async def test_no_api_key_asks_for_money_or_adds_a_method(service: Service) -> None:
    who = await earner(service)
    body = {"name": "all", "scopes": ["wallet:read"]}
    key = (await service.call("POST", "/api/keys", body, token=who.person.token)).body["key"]
    token = key if isinstance(key, str) else key["key"]
    listed = await service.call("GET", "/api/payouts", token=token)
    assert listed.status == 200, listed.body
    for path, sent in (
        ("/api/payouts", {"amount": 1_000, "method_id": who.method_id}),
        ("/api/payouts/methods", BANK),
        ("/api/payouts/connect", {}),
    ):
        answer = await service.call("POST", path, sent, token=token)
        assert answer.status == 401, answer.body


@pytest.mark.both_engines
async def test_a_small_payout_is_approved_at_once(service: Service) -> None:
    who = await earner(service)
    offer(service, automatic=6_000_000)
    small = (await ask(service, who, 600)).body["payout"]
    large = (await ask(service, who, 700)).body["payout"]
    assert (small["state"], large["state"]) == ("approved", "requested")
    row = await service.daemon.market.payouts.find(who.person.user_id, small["id"])
    assert row.state == "approved"
    assert row.currency == Currency.CREDIT


async def test_a_new_method_needs_a_fresh_login_and_waits(service: Service) -> None:
    who = await earner(service)
    offer(service, method_wait_seconds=3_600)
    added = await service.call("POST", "/api/payouts/methods", BANK, token=who.person.token)
    early = await ask(service, Earner(who.person, added.body["method"]["id"]))
    assert early.body["error"]["code"] == "payout_not_permitted"

    async def age(tx: Transaction) -> None:
        await tx.run("UPDATE login_sessions SET created_at = created_at - 601")

    await service.daemon.store.write(age)
    refused = await service.call("POST", "/api/payouts/methods", BANK, token=who.person.token)
    assert refused.body["error"]["code"] == "fresh_login_needed"
    types = [each["type"] for each in await events(service, who.person)]
    assert types.count("payout_method.added") == 2


async def events(service: Service, person: Person) -> list[dict[str, Any]]:
    """Return a user's events."""
    found = await service.call("GET", "/api/events", token=person.token)
    return list(found.body["events"])


async def test_an_account_at_stripe_is_paid_and_a_notice_alone_takes_nothing_back(
    tmp_path: Path,
) -> None:
    async with taking.shop(tmp_path) as shop:
        service, stripe, person = shop.service, shop.stripe, await shop.service.person()
        await shop.confirm(person)
        await work(service, person, 2_000)
        first, again = [
            (await service.call("POST", "/api/payouts/connect", token=person.token)).body
            for _ in range(2)
        ]
        assert first["method"] == again["method"]
        assert first["url"].startswith(f"{stripe.url}/setup/acct_")
        stripe.fill_in(*stripe.accounts)
        who = Earner(person, first["method"]["id"])
        payout = (await ask(service, who)).body["payout"]
        market, path = service.daemon.market, f"/api/payouts/{payout['id']}"
        await service.daemon.store.write(steps.approve, market.context, payout["id"])
        rounds = service.daemon.core.work
        assert rounds is not None
        assert await rounds.send_payouts() == 1
        shown = (await service.call("GET", path, token=person.token)).body["payout"]
        assert (shown["state"], shown["net_usd"]) == ("paid", 9.5)
        [transfer] = stripe.transfers.values()
        assert (transfer["amount"], transfer["metadata"]) == (950, {"payout_id": payout["id"]})
        for state in ("paid", "failed"):
            assert await stripe.notify("transfer.reversed", {**transfer, "reversed": True}) == 200
            shown = (await service.call("GET", path, token=person.token)).body["payout"]
            assert shown["state"] == state
            stripe.reverse(transfer["id"])
