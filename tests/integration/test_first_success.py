"""A bought session carries bytes, and counts each one."""

from support.clients.socks import tunnel
from support.daemons.service import Service
from support.targets import targets


async def test_a_bought_session_relays_and_counts(service: Service) -> None:
    buyer = await service.person(usd="10")
    bought = await service.buy(buyer)
    async with targets.echo() as target:
        client = await tunnel(
            service.proxy_port, bought.username, bought.password, target.host, target.port
        )
        await client.send(b"hello")
        assert await client.receive(5) == b"hello"
        client.end()
        assert await client.rest() == b""
        await client.close()
    session = await service.session(buyer, bought)
    assert session["bytes_used"] == 10
