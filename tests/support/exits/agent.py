"""The agent as a program of its own, with a judge of its guard switched off.

`python -m support.exits.agent FOLDER JUDGE`: the judge is `policy`, `surroundings`, `kernel`, `all`
or `none`. Without `none` it is the program of `proxyctl exit run`.
"""

import asyncio
import sys
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path

from proxyctl.attach.network import netlink
from proxyctl.attach.network.lan import NEVER_PORTS, Guard
from proxyctl.attach.network.surroundings import Surroundings, read_networks
from proxyctl.exit.agent.agent import Agent
from proxyctl.exit.base import names, record
from proxyctl.protocol.policy import Policy

EVERYTHING = ("0.0.0.0/0", "::/0")


class Blind(Surroundings):
    """Surroundings that contain no address."""

    def contains(self, address: object) -> bool:
        return False


def guard_without(judge: str) -> Guard:
    return Guard(
        policy=Policy(
            blocked_ports=NEVER_PORTS, allow=EVERYTHING if judge in ("policy", "all") else ()
        ),
        surroundings=(Blind if judge in ("surroundings", "all") else Surroundings)(read_networks),
        kernel=None if judge in ("kernel", "all") else netlink.Routes(),
        allow=[ip_network(each) for each in EVERYTHING] if judge == "all" else [],
        must_know=True,
    )


async def work(folder: Path, judge: str) -> None:
    agent = Agent(
        record.load(folder / names.CONSENT),
        folder,
        guard=guard_without(judge),
        now=lambda: datetime.now(UTC),
        read_power=lambda: "",
    )
    await agent.run()


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), sys.argv[2]))
