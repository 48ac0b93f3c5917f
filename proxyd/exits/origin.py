"""Whether an exit's connections leave from where it is attached.

A device may attach from one line and send what it carries through another: a VPN, a proxy, a second
line. Then its buyers do not leave where it is counted. So the daemon has itself called through the
exit, at its own public port of exits, with a number that is good once, and sees which address
arrives. Where it cannot be reached there, that proves nothing.

An exit knows what it is asked here, and could send this one connection another way: it is found
then by the complaints of buyers, for whom `GET /ip` tells the same.
"""

import asyncio
import logging
from collections.abc import Callable
from secrets import token_bytes
from typing import Final, Protocol, final

from market.networks import Address
from proxyctl.protocol.policy import is_global
from proxyd.exits.attached import Attached
from proxyd.exits.errand import Unknown, Ways

NUMBER_BYTES: Final = 16
CALL: Final = b"C"  # the first byte of such a call; TLS begins with 0x16, a work connection with W
CALL_SECONDS = 10.0  # a connection through the exit, and a few bytes

_logger = logging.getLogger("exits")


class Calls(Protocol):
    """Hears calls, and files exits: of the listener, what is needed."""

    def expect(self, number: bytes, called: Callable[[str], None]) -> None:
        """Have `called` be called with the address that a number arrives from."""

    def forget_call(self, number: bytes) -> None:
        """Expect a number no more."""

    def leaves_from(self, attached: Attached, address: str) -> None:
        """Hear from which address an exit's connections leave."""


@final
class OriginCheck:
    """Has the daemon called through exits.

    `permits` says which addresses of the daemon may be called; others are not public.

    Args:
        ways: how connections are made.
        calls: hears them arrive.
        door: returns the host and port that exits attach to.
    """

    def __init__(self, ways: Ways, calls: Calls, door: Callable[[], tuple[str, int]]) -> None:
        self.permits: Callable[[Address], bool] = is_global
        self._ways = ways
        self._calls = calls
        self._door = door

    async def look(self, attached: Attached) -> bool:
        """Look where an exit's connections leave; False when that cannot be said."""
        loop = self._ways.reactor.loop
        host, port = self._door()
        number = token_bytes(NUMBER_BYTES)
        arrived: asyncio.Future[str] = loop.create_future()

        def called(address: str) -> None:
            if not arrived.done():  # it may just have been given up
                arrived.set_result(address)

        self._calls.expect(number, called)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                target = await self._target(host, attached)
                with await self._ways.dial(attached, target, port) as sock:
                    await loop.sock_sendall(sock, CALL + number)
                    address = await arrived
        except (Unknown, OSError) as error:  # a timeout is such, too
            _logger.debug("exit %s: not called through it: %s", attached.device_id, error)
            return False
        finally:
            self._calls.forget_call(number)
        if not attached.is_gone:
            self._calls.leaves_from(attached, address)
        return True

    async def _target(self, host: str, attached: Attached) -> Address:
        """Return an address of the daemon of the family that the exit attaches by.

        Raises:
            Unknown: it has none that is public.
            OSError: it cannot be looked up.
        """
        version = attached.address.version
        for address in await self._ways.addresses(host):
            if address.version == version and self.permits(address):
                return address
        raise Unknown(f"{host} has no public address of IPv{version}")
