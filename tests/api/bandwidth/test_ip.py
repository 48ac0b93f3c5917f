"""The caller gets its own address and each source's view of it."""

from pathlib import Path

import pytest
from support.base.waiting import until
from support.clients.socks import Client, request
from support.clients.story import buy
from support.daemons.service import Service, running_in
from support.exits.device import EXITS, consented, listener_of
from support.market.exits import SomeAttached

from market.exits.consents import Whereabouts


async def text_of(service: Service, accept: str) -> tuple[str, str]:
    async with service.http.get(f"{service.url}/ip", headers={"Accept": accept}) as response:
        assert response.status == 200
        assert response.headers["Vary"] == "Accept"
        assert response.headers["Cache-Control"] == "no-store"
        return response.headers["Content-Type"], await response.text()


async def test_without_exits_only_the_address_is_returned(service: Service) -> None:
    answer = await service.call("GET", "/ip")
    assert answer.status == 200
    assert answer.body == {
        "ok": True,
        "ip": "127.0.0.1",
        "country": "",
        "state": "",
        "city": "",
        "asn": 0,
        "kind": "",
        "opinions": {},
        "sources_agree": True,
        "attribution": [],
    }
    assert answer.headers["Vary"] == "Accept"
    assert await text_of(service, "text/plain") == ("text/plain; charset=utf-8", "127.0.0.1\n")


async def test_every_source_of_the_place_is_returned(service: Service) -> None:
    attached = SomeAttached()
    service.daemon.market.exits.join(attached)
    attached.whereabouts["127.0.0.1"] = Whereabouts(
        "de", "", "berlin", 3320, "residential", {"known": "", "registries": "de"}
    )
    answer = await service.call("GET", "/ip")
    assert answer.body["opinions"] == {"known": "", "registries": "de"}
    assert answer.body["sources_agree"] is True
    assert (answer.body["city"], answer.body["asn"]) == ("berlin", 3320)
    assert answer.body["kind"] == "residential"
    assert answer.body["attribution"] == ["Places: somebody"]
    assert (await text_of(service, "text/plain"))[1] == "127.0.0.1 de berlin AS3320\n"

    differing = Whereabouts(opinions={"registries": "us", "ipfire": "ca"})
    attached.whereabouts["127.0.0.1"] = differing
    answer = await service.call("GET", "/ip")
    assert (answer.body["country"], answer.body["sources_agree"]) == ("", False)


async def test_only_a_trusted_proxy_is_believed(tmp_path: Path) -> None:
    headers = {"X-Forwarded-For": "8.8.8.8"}
    async with running_in(tmp_path) as service:
        assert (await service.call("GET", "/ip", headers=headers)).body["ip"] == "127.0.0.1"
    (tmp_path / "trusting").mkdir()
    trusting = {"trusted_proxies": ["127.0.0.0/8"]}
    async with running_in(tmp_path / "trusting", api=trusting) as service:
        assert (await service.call("GET", "/ip", headers=headers)).body["ip"] == "8.8.8.8"


@pytest.mark.usefixtures("no_time_for_rates")
async def test_it_is_rate_limited(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"requests_per_second": 1}) as service:
        statuses = [(await service.call("GET", "/ip")).status for _ in range(4)]
        assert statuses[0] == 200
        assert 429 in statuses


async def test_through_an_exit_its_own_address_is_returned(tmp_path: Path) -> None:
    async with running_in(tmp_path, **EXITS) as service:
        device = await (await consented(service)).attach(service)
        device.leaves_from = "127.0.0.9"
        await until(lambda: listener_of(service).counters.parked > 0, "a connection waits")
        service.wishes = "-country-xx"
        _, bought = await buy(service)
        client = await Client.open(service.proxy_port)
        assert await client.log_in(bought.username, bought.password) == 0
        await client.send(request("127.0.0.1", service.api_port))
        assert (await client.reply())[0] == 0
        await client.send(b"GET /ip HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n\r\n")
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head
        assert await client.reader.readline() == b"127.0.0.9 xx\n"
        await client.close()
        await device.kill()
