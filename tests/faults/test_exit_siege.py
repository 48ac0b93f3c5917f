"""Exits while one buyer tries to have them all for nothing: another buyer notices none of it."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from support.base.waiting import until
from support.clients.socks import Client
from support.clients.story import buy
from support.daemons.service import Bought, Service
from support.exits.device import listener_of
from support.exits.siege import Hostile, besieged, market_with_exits, trickle

EXIT_COUNT = 3
REQUESTS = 300  # of the other buyer, in a minute
SECONDS = float(os.environ.get("EXIT_SIEGE_SECONDS", "8"))
AT_ONCE = 4
ANSWER_SECONDS = 10.0


async def answer(service: Service, bought: Bought, port: int) -> str:
    """Make one request; return why it failed, or nothing."""
    client = await Client.open(service.proxy_port)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            assert await client.log_in(bought.username, bought.password) == 0
            code = await client.connect("127.0.0.1", port)
            if code:
                return f"reply {code}"
            await client.send(b"hello")
            return "" if await client.receive(5) == b"hello" else "other bytes"
    except (TimeoutError, OSError, EOFError) as error:
        return type(error).__name__
    finally:
        client.writer.transport.abort()


@pytest.mark.long
async def test_one_buyer_cannot_take_the_exits_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with market_with_exits(tmp_path, monkeypatch, EXIT_COUNT) as (service, places):
        mallory, first = await buy(service)
        sessions = [first, *[await service.buy(mallory) for _ in range(2)]]
        _, bought = await buy(service)
        it, failures, taken = Hostile(service, sessions, places), [], []
        requests = round(REQUESTS * SECONDS / 60)

        async def ask(number: int) -> None:
            for each in range(number, requests, AT_ONCE):
                await asyncio.sleep(began + each * SECONDS / requests - time.monotonic())
                at = time.monotonic()
                failure = await answer(service, bought, places["echo"])
                taken.append(time.monotonic() - at)
                failures.extend([(round(at - began, 1), failure)] if failure else [])

        async with besieged(it):
            began = time.monotonic()
            await asyncio.gather(*[ask(number) for number in range(AT_ONCE)])
        ordered = sorted(taken)
        print(  # noqa: T201 - the figures of the target that runs it for a minute
            f"{len(taken)} requests, {len(failures)} failed;"
            f" median {ordered[len(ordered) // 2]:.3f} s,"
            f" p99 {ordered[len(ordered) * 99 // 100]:.3f} s,"
            f" longest {ordered[-1]:.3f} s;"
            f" tricks {dict(it.played)}"
        )
        assert failures == []
        assert listener_of(service).counters.dials["connected"] >= requests
        assert len(taken) == requests
        assert all(it.played.values())


async def test_two_buyers_that_keep_each_exit_full_cannot_close_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with market_with_exits(tmp_path, monkeypatch, EXIT_COUNT) as (service, places):
        sessions = [(await buy(service))[1] for _ in range(2)]
        _, bought = await buy(service)
        attached = list(listener_of(service).roster.by_device.values())
        places_in_all = sum(each.limits.connections for each in attached)

        async with besieged(Hostile(service, sessions, places), {trickle: 70}):
            await until(
                lambda: sum(each.places.taken for each in attached) >= places_in_all,
                "two buyers have all places",
            )
            await until(
                lambda: all(
                    each.places.has(
                        "newcomer", each.limits.connections, 0, each.load.now(), datagrams=False
                    )
                    for each in attached
                ),
                "their connections have begun",
            )
            failures = [await answer(service, bought, places["echo"]) for _ in range(30)]
        assert not any(failures), failures
