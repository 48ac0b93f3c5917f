"""The served part of the marketplace, and its messages: the API, e-mails, webhooks.

Of several processes one does it, and the others run only the proxy.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from api.server import HttpServer
from config.settings import Settings
from market.market import Market
from market.photos.decoding import Photos
from proxyd.acceptor import Acceptor
from proxyd.loop import cancellation
from proxyd.outbound.mailer import Mailer
from proxyd.outbound.webhooks import WebhookSender
from proxyd.wiring import slices
from proxyd.wiring.abuse_settings import rules_of
from proxyd.wiring.app_port import AppPort
from proxyd.wiring.staff_port import StaffPort
from proxyd.wiring.tasks import Tasks
from storage.blobs.base import Blobs

if TYPE_CHECKING:
    from proxyd.outbound.chat_model import OpenAiModel

WEBHOOK_LOOK_SECONDS = 0.5  # the longest delay of a delivery
CLOSE_SECONDS = 8.0  # the API's requests in progress have 5 s of them (`api.server`)
# 1.3 MB/s at a round trip of 100 ms, since Linux doubles it. More bytes would stay in the kernel
# longer than a client may read nothing, and an honest slow client would be cut.
API_SEND_BUFFER_BYTES = 64 * 1024
API_RECEIVE_BUFFER_BYTES = 128 * 1024  # the loop reads no more than this in one turn

_logger = logging.getLogger("daemon")


class Look(NamedTuple):
    """Repeated look at the service itself: its pause, name, function, and words for the log."""

    seconds: float
    name: str
    run: Callable[[], Awaitable[object]]
    what: str


class Services:
    """The marketplace and its API, built but not started.

    Args:
        model: answers for the assistant; None where none is configured.
        looks: the repeated looks at the service itself; None of them on a restored database that
            waits for its confirmation.
        app_port: the port of apps; None without one.
        staff_port: the port of the staff; None without one.
        is_held: whether e-mails and webhooks wait for the confirmation of a restored database.
    """

    def __init__(
        self,
        market: Market,
        http: HttpServer,
        *,
        mailer: Mailer,
        model: "OpenAiModel | None",
        photos: Photos,
        blobs: Blobs,
        webhooks: WebhookSender,
        looks: Sequence["Look"],
        app_port: AppPort | None = None,
        staff_port: StaffPort | None = None,
        is_held: bool = False,
    ) -> None:
        self._looks = looks
        self.market = market
        self.http = http
        self._mailer = mailer
        self._model = model
        self._photos = photos
        self._blobs = blobs
        self.webhooks = webhooks
        self.app_port = app_port
        self.staff_port = staff_port
        self._is_held = is_held
        self._acceptor: Acceptor[socket.socket] | None = None

    def spawn_tasks(self, tasks: Tasks) -> None:
        """Start the senders."""
        if not self._is_held:
            tasks.spawn("mail", self._mailer.run())
            look = self.webhooks.look
            tasks.every(WEBHOOK_LOOK_SECONDS, "webhooks", look, "webhooks that are due")
            for each in self._looks:
                tasks.every(each.seconds, each.name, each.run, each.what)
        if self.app_port is not None:
            self.app_port.spawn_tasks(tasks)

    def serve(self, api: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve the API on a listening socket, which is owned from here on."""
        # Its connections inherit both; the kernel's memory for each is also bounded.
        api.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, API_SEND_BUFFER_BYTES)
        api.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, API_RECEIVE_BUFFER_BYTES)
        self.http.start(tls)
        loop, logger = asyncio.get_running_loop(), logging.getLogger("api")
        shed = self.http.shed
        self._acceptor = Acceptor(loop, api, self.http.welcome, shed, logger, socket.socket)
        if self.app_port is not None:
            self.app_port.start()
        if self.staff_port is not None:
            self.staff_port.start()

    def reload(self, settings: Settings, descriptors: int) -> None:
        """Take new limits; `descriptors` is how many may be open."""
        self.http.change_limits(slices.api_limits(settings, descriptors))
        self.market.change_bounds(slices.bounds(settings))
        self.market.event_feed.terms = slices.event_feed_terms(settings, descriptors)
        self.market.dispatch.terms = slices.dispatch_terms(settings, descriptors)
        self.market.rule_stops.stops_to_suspend = settings.abuse.stops_to_suspend
        if self.staff_port is not None:
            self.staff_port.desk.rules = rules_of(settings)

    def drain(self) -> None:
        """Begin no new request, and answer those that wait for work."""
        self.http.drain()
        self.market.event_feed.end()
        self.market.dispatch.drain()
        if self.app_port is not None:
            self.app_port.drain()
        if self.staff_port is not None:
            self.staff_port.drain()

    def leave_socket(self) -> None:
        """Accept no new client; another holder of the socket keeps it for the next daemon."""
        if self._acceptor is not None:
            self._acceptor.close()

    def leave_app_socket(self) -> None:
        """Leave the clients of apps that come from here on to the next daemon, in the same way."""
        if self.app_port is not None:
            self.app_port.leave_socket()

    async def stop_serving(self) -> None:
        """End every request, within a bound."""
        self.leave_socket()
        self.market.event_feed.end()
        self.market.logs.readers.end()
        if self.app_port is not None:
            await self.app_port.close()
        if self.staff_port is not None:
            await self.staff_port.close()
        await cancellation.within(CLOSE_SECONDS, self.http.stop(), "closing the API")
        await cancellation.within(CLOSE_SECONDS, self.webhooks.close(), "ending deliveries")
        # For devices that have gone away meanwhile, and whose jobs are being written down.
        settling = self.market.dispatch.claims.settle()
        await cancellation.within(CLOSE_SECONDS, settling, "giving the last jobs away")

    async def close(self) -> None:
        """Close the parts that work for the marketplace, each within a bound."""
        self.market.passwords.close()
        closing = self.market.payments.close()
        await cancellation.within(CLOSE_SECONDS, closing, "closing the payment providers' clients")
        closing = self.market.payouts.close()
        await cancellation.within(CLOSE_SECONDS, closing, "closing the client for payouts")
        await cancellation.within(
            CLOSE_SECONDS, asyncio.to_thread(self.market.logs.close), "writing the last logs"
        )
        self._photos.close()
        await cancellation.within(CLOSE_SECONDS, self._blobs.close(), "closing what keeps files")
        if self._model is not None:
            await cancellation.within(
                CLOSE_SECONDS, self._model.close(), "closing the model's client"
            )
