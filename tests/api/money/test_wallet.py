"""Changes in a wallet: each change of the spendable money; their sum is the balance."""

from typing import Any

import pytest
from support.daemons.service import Person, Service
from support.market import deposits

from market.money.money import Currency
from proxyd.loop import clock

WALLET = "/api/wallet"
PATH = "/api/wallet/transactions"


async def page(service: Service, person: Person, query: str = "") -> dict[str, Any]:
    answer = await service.call("GET", PATH + query, token=person.token)
    assert answer.status == 200, answer.body
    return dict(answer.body)


async def moved(service: Service, person: Person) -> list[tuple[str, str, float, str]]:
    """Return the movements, oldest first."""
    found = (await page(service, person))["transactions"]
    return [(each["kind"], each["currency"], each["amount"], each["reference"]) for each in found][
        ::-1
    ]


async def put_up(service: Service, person: Person, price: float) -> str:
    job = {"title": "x", "job_type": "script", "price_credit": price, "duration_hrs": 1}
    answer = await service.call("POST", "/api/jobs", job, token=person.token)
    return str(answer.body["job_id"])


async def test_held_money_is_shown_beside_the_money_to_spend(service: Service) -> None:
    buyer = await service.person(usd="10", credit="10")
    await service.buy(buyer, quota=2 * 10**9)
    await put_up(service, buyer, 3.5)
    shown = await service.call("GET", WALLET, token=buyer.token)
    assert shown.body == {
        "ok": True,
        "credit_balance": 6.5,
        "usd_balance": 8.0,
        "credit_held": 3.5,
        "usd_held": 2.0,
        "usd_pending": 0.0,
        "credit_in_review": 0.0,
    }
    assert (await service.call("GET", WALLET)).status == 401


async def test_a_wallet_lists_a_life_and_sums_to_the_balance(service: Service) -> None:
    worker, buyer = await service.person(), await service.person(usd="10", credit="100")
    info = await service.call("GET", "/api/referral/info", token=worker.token)
    body = {"referral_code": info.body["referral_code"]}
    await service.call("POST", "/api/referral/apply", body, token=buyer.token)
    session = await service.buy(buyer)
    ending = {"session_id": session.id}
    await service.call("POST", "/api/bandwidth/end", ending, token=buyer.token)
    released, done = await put_up(service, buyer, 5), await put_up(service, buyer, 20)
    await service.call("POST", f"/api/jobs/{released}/cancel", token=buyer.token)
    made = await service.call(
        "POST", "/api/worker/token/create", {"name": "rig"}, token=worker.token
    )
    device = {"X-Worker-Token": made.body["token"]}
    await service.call("POST", f"/api/jobs/{done}/accept", headers=device)
    await service.call("POST", f"/api/worker/jobs/{done}/complete", headers=device)

    told = await moved(service, buyer)
    assert [each[:3] for each in told[:2]] == [("deposit", "usd", 10.0), ("deposit", "credit", 100)]
    assert told[2:] == [
        ("referral", "credit", 25.0, "referral"),
        ("hold", "usd", -1.0, f"bandwidth:{session.id}"),
        ("release", "usd", 1.0, f"bandwidth:{session.id}"),
        ("hold", "credit", -5.0, f"job:{released}"),
        ("hold", "credit", -20.0, f"job:{done}"),
        ("release", "credit", 5.0, f"job:{released}"),
    ]
    assert await moved(service, worker) == [
        ("referral", "credit", 50.0, "referral"),
        ("earning", "credit", 18.0, f"job:{done}"),
    ]
    for person in (buyer, worker):
        me = (await service.call("GET", "/auth/me", token=person.token)).body
        for currency in Currency:
            total = sum(each[2] for each in await moved(service, person) if each[1] == currency)
            assert total == me[f"{currency}_balance"]


async def test_work_that_dollars_pay_is_an_earning(service: Service) -> None:
    worker, buyer = await service.person(), await service.person(usd="10")
    deploy = {"job_name": "x", "job_type": "Script", "gpu_model": "T4"}
    made = await service.call("POST", "/api/deploy/job", deploy, token=buyer.token)
    [job_id] = (
        await service.call("GET", f"/api/deploy/job/{made.body['job_id']}", token=buyer.token)
    ).body["deploy"]["job_ids"]
    token = await service.call(
        "POST", "/api/worker/token/create", {"name": "rig"}, token=worker.token
    )
    device = {"X-Worker-Token": token.body["token"]}
    await service.call("POST", f"/api/jobs/{job_id}/accept", headers=device)
    await service.call("POST", f"/api/worker/jobs/{job_id}/complete", headers=device)
    assert await moved(service, worker) == [("earning", "credit", 90.0, f"job:{job_id}")]


async def test_a_deposit_is_listed_by_its_reference(service: Service) -> None:
    person = await service.person()
    for reference in ("invoice-1", "a:b"):
        await service.daemon.store.write(
            deposits.deposit,
            service.daemon.market.context,
            email=person.email,
            currency=Currency.USD,
            amount=1_500_000,
            reference=reference,
            transfer_id=service.daemon.market.context.identifiers.new(),
            now=clock.seconds(),
        )
    assert await moved(service, person) == [
        ("deposit", "usd", 1.5, "invoice-1"),
        ("deposit", "usd", 1.5, "a:b"),
    ]


async def test_pages_follow_each_other_newest_first(service: Service) -> None:
    person = await service.person(credit="10")
    for _ in range(4):
        await put_up(service, person, 1)
    whole = (await page(service, person))["transactions"]
    assert [each["amount"] for each in whole] == [-1.0] * 4 + [10.0]
    seen: list[Any] = []
    query = "?limit=2"
    for more in (True, True, False):
        part = await page(service, person, query)
        assert ("next_cursor" in part) is more
        seen += part["transactions"]
        query = f"?limit=2&cursor={part.get('next_cursor')}"
    assert seen == whole


async def test_no_user_sees_the_wallet_of_another(service: Service) -> None:
    await service.person(usd="10")
    other = await service.person()
    assert await page(service, other) == {"ok": True, "transactions": []}
    assert (await service.call("GET", PATH)).status == 401


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "cursor=x"])
async def test_a_part_that_can_not_be_is_refused(service: Service, query: str) -> None:
    person = await service.person()
    answer = await service.call("GET", f"{PATH}?{query}", token=person.token)
    assert (answer.status, answer.code) == (400, "invalid_field")
    assert answer.field == query.partition("=")[0]
