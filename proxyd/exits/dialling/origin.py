"""Source addresses of an exit's connections.

A device may attach from one line and send its traffic through another: a VPN, a proxy, a second
line. Then its buyers do not leave where it is counted. And a device behind a translator does not
know its public addresses, at which its router shows its own pages. So the daemon has the exit call
it, at its public port of exits and with a number that is good once. The daemon sees the address of
the call, once for each family of addresses in which it has a public one itself. The exit learns the
address, and carries no family before that.

An older agent makes the call as an order, and only in the family of its control connection.

An exit recognises this question, and could send this one connection another way. Buyers find it
then: `GET /ip` tells them the same. A second number in the other direction would change nothing,
because a proxy passes both on. So a call never improves the position of an exit
(`Origins.leaves_from`), and no buyer's connection reaches the port (`own_ports.py`).
"""

import asyncio
import logging
from collections.abc import Callable
from secrets import token_bytes
from typing import Final, final

from market.base.networks import Address
from proxyctl.protocol.frames import CALL, CALL_NUMBER_BYTES, CALLS, Call
from proxyctl.protocol.policy import is_global
from proxyd.exits.attached.attached import Attached
from proxyd.exits.attached.origins import Origins
from proxyd.exits.dialling.errand import Unknown, Ways

CALL_SECONDS: Final = 10.0  # a connection through the exit, and a few bytes
VERSIONS: Final = (4, 6)

_logger = logging.getLogger("exits")


@final
class OriginCheck:
    """Makes exits call the daemon, to see the address of their connections.

    `permits` says which addresses of the daemon may be called; others are not public.

    Args:
        door: returns the host and port that exits attach to.
        seconds: how long a call may take.
    """

    def __init__(
        self,
        ways: Ways,
        calls: Origins,
        door: Callable[[], tuple[str, int]],
        seconds: float = CALL_SECONDS,
    ) -> None:
        self._seconds = seconds
        self.permits: Callable[[Address], bool] = is_global
        self._ways = ways
        self._calls = calls
        self._door = door

    async def look(self, attached: Attached, *, other_family: bool = False) -> bool:
        """Find the source address of an exit's connections.

        Args:
            attached: the exit.
            other_family: whether to look at the family alone that it is not attached by.

        Returns:
            False when no call came in a family in which the daemon has a public address.
        """
        host, port = self._door()
        try:
            targets = await self._targets(host, attached)
        except OSError as error:
            _logger.debug("exit %s: not called by it: %s", attached.device_id, error)
            return False
        own = attached.address.version
        wanted = [each for each in targets if not (other_family and each.version == own)]
        results = [await self._look_at(attached, target, port) for target in wanted]
        return all(results)

    async def _look_at(self, attached: Attached, target: Address, port: int) -> bool:
        """Order a call of one address of the daemon."""
        number = token_bytes(CALL_NUMBER_BYTES)
        arrived: asyncio.Future[str] = self._ways.reactor.loop.create_future()

        def called(address: str) -> None:
            if not arrived.done():  # it may just have been given up
                arrived.set_result(address)

        self._calls.expect(number, called)
        try:
            async with asyncio.timeout(self._seconds):
                if CALLS in attached.features:
                    attached.say(Call(number, target, port))
                    address = await arrived
                else:
                    address = await self._order(attached, target, port, number, arrived)
        except (Unknown, OSError) as error:  # a timeout is an OSError
            _logger.debug("exit %s: not called through it: %s", attached.device_id, error)
            return False
        finally:
            self._calls.forget_call(number)
        if not attached.is_gone:
            self._calls.leaves_from(attached, address)
        return True

    async def _order(
        self,
        attached: Attached,
        target: Address,
        port: int,
        number: bytes,
        arrived: "asyncio.Future[str]",
    ) -> str:
        """Order an older agent to make the call.

        Raises:
            Unknown: the exit has not connected.
            OSError: the connection broke.
        """
        with await self._ways.dial(attached, target, port) as sock:
            await self._ways.reactor.loop.sock_sendall(sock, CALL + number)
            return await arrived

    async def _targets(self, host: str, attached: Attached) -> list[Address]:
        """Return public addresses of the daemon: one of each family in which the exit can call.

        Raises:
            OSError: it cannot be looked up.
        """
        public = [each for each in await self._ways.addresses(host) if self.permits(each)]
        own = attached.address.version
        versions = VERSIONS if CALLS in attached.features else (own,)
        first = {each.version: each for each in reversed(public)}
        return [first[version] for version in versions if version in first]
