"""Sends the alerts that wait in the outbox to the webhook of the operator.

The requests are signed as those of users' webhooks are. The operator chose the address, so private
addresses are permitted. A request that fails is repeated after a pause that grows, for a day.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from market.accounts.outbox import Item, Outbox
from market.notify.webhooks import DeliveryOutcome, signed
from proxyctl.protocol.policy import Policy
from proxyd.egress.resolve import Resolver

LOOK_SECONDS = 5.0
REQUEST_SECONDS = 15.0
AT_ONCE_MAX = 10
ANYWHERE = Policy(allow=("0.0.0.0/0", "::/0"))

if TYPE_CHECKING:
    from proxyd.outbound.posting import Poster

_logger = logging.getLogger("alerts")


def poster_of(resolver: Resolver, agent: str) -> "Poster":
    """Return a client that may connect to any address.

    Args:
        resolver: looks names up.
        agent: the name of this program in requests.
    """
    from proxyd.outbound.posting import Poster  # noqa: PLC0415 - as below

    return Poster(resolver, ANYWHERE, agent, None, REQUEST_SECONDS)


class AlertHook:
    """Sends to one address.

    Args:
        outbox: the messages that wait.
        url: the address.
        key: signs each request.
        poster: returns the client of HTTP; it is called with the first message.
        now: the wall clock, in UTC seconds.
    """

    def __init__(
        self,
        outbox: Outbox,
        url: str,
        key: bytes,
        poster: Callable[[], "Poster"],
        now: Callable[[], int],
    ) -> None:
        self.outbox = outbox
        self._url = url
        self._key = key
        self._poster = poster
        self._now = now

    async def look(self) -> None:
        """Send the messages that are due, one after the other.

        Raises:
            StoreError: they are sent later; one that was sent may be sent again.
        """
        await self.outbox.tidy()
        for again in (False, True):
            for row in await self.outbox.due(again=again, limit=AT_ONCE_MAX):
                item = await self.outbox.claim(row)
                if item is not None:
                    await self._settle(item, await self._post(item))

    async def _post(self, item: Item) -> DeliveryOutcome:
        # Here, so that a daemon without a message does not wait for a client of HTTP.
        from proxyd.outbound.posting import Request  # noqa: PLC0415

        now = self._now()
        headers = signed(item.row.id, now, item.payload, [self._key])
        request = Request(f"alert {item.key}", self._url, headers, item.payload, now)
        return await self._poster().send(request)

    async def _settle(self, item: Item, outcome: DeliveryOutcome) -> None:
        if not outcome.error:
            await self.outbox.done(item)
            return
        pause = await self.outbox.put_off(item)
        if pause is None:
            _logger.error("webhook: %s: given up: %s", item.key, outcome.error)
        else:
            _logger.warning("webhook: %s: %s, next in %d s", item.key, outcome.error, pause)
