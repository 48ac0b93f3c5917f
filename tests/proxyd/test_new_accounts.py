"""The limits of a new account at the proxy: ports, connections, and their ends."""

from pathlib import Path

from support.base.waiting import until
from support.clients.socks import Client
from support.daemons.service import running_in
from support.market.staff import ROOT
from support.targets.targets import echo

from market.accounts.levels import Level
from market.staff.money import user_limits
from market.staff.money.user_limits import NewLimits


async def test_a_new_account_has_few_connections_and_ports_until_it_is_known(
    tmp_path: Path,
) -> None:
    new = {"days": 7, "connections": 2, "confirmed_email": False, "gb_per_day": 1}
    async with (
        echo() as target,
        running_in(tmp_path, new_accounts={**new, "ports": [target.port]}) as service,
    ):
        person = await service.person(usd="10")
        sessions = [await service.buy(person) for _ in range(2)]

        clients: list[Client] = []

        async def log_in(number: int = 0) -> tuple[Client, int]:
            client, bought = await Client.open(service.proxy_port), sessions[number]
            clients.append(client)
            return client, await client.log_in(bought.username, bought.password)

        first, status = await log_in()
        assert (status, await first.connect("127.0.0.1", target.port)) == (0, 0)
        for command, port in ((1, target.port + 1), (1, 25), (3, target.port)):
            refused, _ = await log_in()
            assert await refused.connect("127.0.0.1", port, command=command) == 2
        second, status = await log_in(1)  # the limit is one of all sessions of the user
        assert (status, await second.connect("127.0.0.1", target.port)) == (0, 0)
        for number in range(2):
            assert (await log_in(number))[1] == 7
        listed = await service.call("GET", "/api/bandwidth/sessions", token=person.token)
        limited = listed.body["limited"]
        assert (limited["connections"], limited["ports"]) == (2, [target.port])
        assert limited["until"]

        context = service.daemon.market.context
        await user_limits.change(
            context, ROOT, person.user_id, NewLimits(level=Level.KNOWN), "a company"
        )

        async def is_known() -> bool:
            return (await log_in())[1] == 0

        await until(is_known, "the process looks at the level again")
        client, _ = await log_in()
        assert await client.connect("127.0.0.1", target.port + 1) != 2
        listed = await service.call("GET", "/api/bandwidth/sessions", token=person.token)
        assert "limited" not in listed.body
        for client in clients:
            await client.close()
