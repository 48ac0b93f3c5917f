"""An exit's bytes become its owner's money, over a whole daemon; a cheating exit is cut."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.base.waiting import until
from support.clients.socks import Client, request
from support.clients.story import buy, reached, used
from support.daemons.bounded import check_bounds
from support.daemons.service import Bought, Person, Service, running_in, settings_for
from support.exits.device import EXITS, Device, consented
from support.market.staff import ROOT
from support.market.staff_money import LIMITS
from support.targets import targets
from support.targets.targets import Target

from market.exits.earnings import AdvancePace
from market.money.money import MICRO
from market.staff.cases import clawing
from proxyd.ops.base.books import context_of, opened

PRICE = 10_000.0  # USD per GB, so that little traffic is worth something


# The sweeps come round soon.
QUICK = check_bounds(exit_look_seconds=0.05, exit_payout_seconds=0.05, exit_advance_seconds=0.05)


def exits(**settings: Any) -> dict[str, Any]:
    return {"bounds": QUICK} | EXITS | {"exits": {**EXITS["exits"], **settings}}


async def carried(service: Service, bought: Bought, target: Target, size: int) -> Client:
    """Have a session carry a payload to a target and back; return its client."""
    client = await reached(service, bought, target)
    payload = targets.pattern(size)
    await client.send(payload)
    assert await client.receive(size) == payload
    return client


async def answer_to(service: Service, bought: Bought, target: Target) -> int:
    """Ask for a target by SOCKS5, and return the status of the reply."""
    client = await Client.open(service.proxy_port)
    assert await client.log_in(bought.username, bought.password) == 0
    await client.send(request(target.host, target.port))
    status, _, _ = await client.reply()
    await client.close()
    return status


async def wallet(service: Service, person: Person) -> dict[str, float]:
    answer = await service.call("GET", "/api/wallet", token=person.token)
    return dict(answer.body)


async def test_bytes_through_an_exit_become_a_balance_by_themselves(tmp_path: Path) -> None:
    async with running_in(tmp_path, **exits(payout_hold_days=0)) as service:
        made = await consented(service)
        device = await made.attach(service)
        service.wishes = "-country-xx"
        async with targets.echo() as target:
            person, bought = await buy(service, quota=1_000_000, price=PRICE)
            client = await carried(service, bought, target, 250_000)
            await client.close()
            assert await used(service, person, bought) == 500_000
        await service.end(person, bought)
        assert await service.balance(person) == 10.0 - 5.0

        async def is_paid() -> bool:
            return (await wallet(service, made.owner))["usd_balance"] > 0

        await until(is_paid, "the owner is paid")
        assert await wallet(service, made.owner) == {
            "ok": True,
            "credit_balance": 0.0,
            "usd_balance": 3.0,
            "credit_held": 0.0,
            "usd_held": 0.0,
            "usd_pending": 0.0,
            "credit_in_review": 0.0,
        }
        path = f"/api/bandwidth/sessions/{bought.id}/exits"
        answer = await service.call("GET", path, token=person.token)
        assert answer.body["countries"] == [{"country": "xx", "exits": 1, "bytes": 500_000}]
        await device.kill()
        await service.assert_audit()


async def test_bytes_of_a_session_that_goes_on_are_posted_by_themselves(
    tmp_path: Path,
) -> None:
    async with running_in(tmp_path, **exits()) as service, targets.echo() as target:
        service.daemon.market.exit_advances.pace = AdvancePace(seconds=1)
        made = await consented(service)
        device = await made.attach(service)
        service.wishes = "-country-xx"
        person, bought = await buy(service, quota=1_000_000, price=PRICE)
        client = await carried(service, bought, target, 250_000)

        async def pending() -> float:
            return (await wallet(service, made.owner))["usd_pending"]

        async def is_posted() -> bool:
            return await pending() == 3.0

        await until(is_posted, "the bytes so far are posted")
        await client.close()
        await service.end(person, bought)
        assert await pending() == 3.0
        assert await service.balance(person) == 10.0 - 5.0
        await device.kill()
        await service.assert_audit()


async def test_a_claw_back_beside_a_daemon_cuts_the_exit_and_refunds(tmp_path: Path) -> None:
    async with running_in(tmp_path, **exits()) as service, targets.echo() as target:
        made = await consented(service)
        device = await made.attach(service)
        service.wishes = "-country-xx"
        first, over = await buy(service, quota=1_000_000, price=PRICE)
        client = await carried(service, over, target, 250_000)
        await client.close()
        await service.end(first, over)
        assert (await wallet(service, made.owner))["usd_pending"] == 3.0
        second, goes_on = await buy(service, quota=1_000_000, price=PRICE)
        client = await carried(service, goes_on, target, 100_000)
        settings = settings_for(f"sqlite:///{tmp_path}/proxyd.db")
        async with opened(settings) as store:  # as a command does
            done = await clawing.claw_back(
                context_of(store), ROOT, LIMITS, made.device_id, "injects into plain HTTP"
            )
        assert (done.earnings, done.amount, done.refunded) == (1, 3 * MICRO, 5 * MICRO)
        await until(lambda: device.is_over, "the exit is let go of")
        with pytest.raises(ConnectionError):
            await client.receive(1)
        await client.close()
        assert await answer_to(service, goes_on, target) == 3
        await service.end(second, goes_on)
        assert await service.balance(first) == 10.0
        assert await service.balance(second) == 10.0
        shown = await wallet(service, made.owner)
        assert (shown["usd_balance"], shown["usd_pending"]) == (0.0, 0.0)
        late = await Device(device.port).attach(made.first)
        assert late.sorry is not None
        assert late.sorry.code == "exit_barred"
        await asyncio.gather(device.kill(), late.kill())
        await service.assert_audit()


@pytest.mark.parametrize("wishes", ["-country-xx", "-kind-any", "-session-abc"])
async def test_a_session_sold_without_wishes_leaves_below_no_floor(
    tmp_path: Path, wishes: str
) -> None:
    floors = {"price_per_gb_floor_usd": {"xx": 2.0, "any": 0.5}}
    async with running_in(tmp_path, **exits(**floors)) as service, targets.sink() as target:
        device = await (await consented(service)).attach(service)
        service.wishes = wishes
        _, cheap = await buy(service, price=1.0)
        assert await answer_to(service, cheap, target) == 3
        assert device.dials == []
        _, dear = await buy(service, price=2.0)
        assert await answer_to(service, dear, target) == 0
        await device.kill()
        await service.assert_audit()
