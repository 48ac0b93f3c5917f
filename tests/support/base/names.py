"""Names for tests: resolvers that ask no name server, and a way to let a daemon ask them."""

import asyncio
from ipaddress import ip_address

import pytest

from proxyd.egress.direct import DirectExit
from proxyd.egress.resolve import Address, NameNotFoundError, Resolver
from proxyd.gateway import Gateway


class Localhost:
    """A `Resolver` that knows one name.

    Args:
        address: the address that the name stands for.
    """

    def __init__(self, address: str) -> None:
        self._addresses = [ip_address(address)]

    def cached(self, name: str) -> list[Address] | None:
        """Return None: no name is cached."""

    async def resolve(self, name: str, asker: object = None) -> list[Address]:
        """Return the addresses of localhost; no other name exists."""
        if name == "localhost":
            return self._addresses
        raise NameNotFoundError(name)


class Slow(Localhost):
    """Resolver that answers only after `may_answer` is set."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.may_answer = asyncio.Event()

    async def resolve(self, name: str, asker: object = None) -> list[Address]:
        """Wait for `may_answer`, then return the addresses of localhost."""
        await self.may_answer.wait()
        return await super().resolve(name, asker)


def look_names_up_by(monkeypatch: pytest.MonkeyPatch, resolver: Resolver) -> None:
    """Make every daemon that is built from now on use this resolver."""

    def build(
        reactor: object, meter: object, exit_: DirectExit, _: Resolver, *others: object
    ) -> Gateway:
        exit_.resolver = resolver
        return Gateway(reactor, meter, exit_, resolver, *others)

    monkeypatch.setattr("proxyd.wiring.build.Gateway", build)
