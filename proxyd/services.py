"""The daemon's work beside the proxy: the marketplace's API, its sweeps, its e-mails.

Of several processes one does it, and the others run only the proxy.
"""

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from api.server import HttpServer
from config.settings import Settings
from market.market import Market
from market.photos.decoding import Photos
from proxyd import slices
from proxyd.acceptor import Acceptor
from proxyd.app_port import AppPort
from proxyd.loop import cancellation, clock
from proxyd.outbound.mailer import Mailer
from proxyd.outbound.webhooks import WebhookSender
from proxyd.tasks import Tasks
from storage.blobs.base import Blobs
from storage.engines.errors import StoreError

if TYPE_CHECKING:
    from proxyd.outbound.chat_model import OpenAiModel

WARN_CHECK_SECONDS = 60.0  # buyers get a day's notice, for at most 500 sessions each time
TAKE_BACK_CHECK_SECONDS = 15.0  # reads every running job; a device may be silent for ten minutes
SILENT_DEVICE_CHECK_SECONDS = 15.0  # owners are notified of a device that is away two minutes
JOB_EXPIRY_CHECK_SECONDS = 15.0
REVIEW_CHECK_SECONDS = 30.0  # workers have waited for hours
# Changes of a replica here are handled immediately; this is for other daemons, and for deadlines.
ROLLOUT_LOOK_SECONDS = 5.0
ARTIFACT_CHECK_SECONDS = 15.0  # 200 files at most each time; their times are days
KEY_CHECK_SECONDS = 600.0  # owners get a week's notice, at most 500 of them each time
APP_KEY_CHECK_SECONDS = 60.0  # they open nothing once their app is over
EVENT_CHECK_SECONDS = 60.0  # 100,000 events at most each time; they are kept for a month
USAGE_FRAME_SECONDS = 1.0  # the pace of the figures that people watch
WEBHOOK_LOOK_SECONDS = 0.5  # the longest delay of a delivery
WEBHOOK_CHECK_SECONDS = 15.0  # longest time of an endpoint above its limit of waiting deliveries
USAGE_CHECK_SECONDS = 600.0  # it has work once a day, and no caller waits for it
LOG_CHECK_SECONDS = 15.0  # longest time of a user above their limit of logs
CLOSE_SECONDS = 8.0  # the API's requests in progress have 5 s of them (`api.server`)
# 1.3 MB/s at a round trip of 100 ms, since Linux doubles it. More bytes would stay in the kernel
# longer than a client may read nothing, and an honest slow client would be cut.
API_SEND_BUFFER_BYTES = 64 * 1024
API_RECEIVE_BUFFER_BYTES = 128 * 1024  # the loop reads no more than this in one turn

_logger = logging.getLogger("daemon")


@dataclass(frozen=True, slots=True)
class CheckTimes:
    """Intervals of the checks of sessions, bonuses and exits.

    Attributes:
        expiry_seconds: a session outlives its time by no more than this.
        referral_seconds: how long a bonus takes once an address is confirmed, at most.
        exit_look_seconds: an owner's own decision bites at once; this is for those of other
            processes, and for places.
        exit_payout_seconds: owners have waited for days, and an hour's owners fit in one.
        exit_advance_seconds: each hour's advance begins within a minute of the hour.
    """

    expiry_seconds: float = 2.0
    referral_seconds: float = 10.0
    exit_look_seconds: float = 5.0
    exit_payout_seconds: float = 60.0
    exit_advance_seconds: float = 60.0


USUAL: Final = CheckTimes()


class Services:
    """The marketplace and its API, built but not started.

    Args:
        model: answers for the assistant; None where none is configured.
        observed_time: for how long this daemon has been there to hear devices.
        app_port: where apps are reached; None where they are not.
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
        observed_time: clock.ObservedTime,
        webhooks: WebhookSender,
        app_port: AppPort | None = None,
        times: CheckTimes = USUAL,
    ) -> None:
        self._times = times
        self.market = market
        self.http = http
        self._mailer = mailer
        self._model = model
        self._photos = photos
        self._blobs = blobs
        self._observed_time = observed_time
        self.webhooks = webhooks
        self.app_port = app_port
        self._acceptor: Acceptor[socket.socket] | None = None

    def spawn_tasks(self, tasks: Tasks) -> None:
        """Start the sweeps, the writers and the senders."""
        market, times = self.market, self._times
        tasks.spawn("heartbeats", market.devices.reports.run(), is_writer=True)
        tasks.spawn("renewals", market.renewals.run(), is_writer=True)
        tasks.every(times.expiry_seconds, "expiry", market.bandwidth.expire, "expired sessions")
        tasks.every(
            WARN_CHECK_SECONDS, "sessions", market.bandwidth.warn, "sessions that are about to end"
        )
        tasks.every(TAKE_BACK_CHECK_SECONDS, "abandoned jobs", self.take_back, "abandoned jobs")
        tasks.every(
            SILENT_DEVICE_CHECK_SECONDS, "silent devices", self.tell_silent, "silent devices"
        )
        tasks.every(
            JOB_EXPIRY_CHECK_SECONDS,
            "waiting jobs",
            market.job_sweeper.expire,
            "jobs that nobody takes",
        )
        tasks.every(
            REVIEW_CHECK_SECONDS, "reviews", market.reviews.expire, "jobs that were not disputed"
        )
        tasks.every(
            times.referral_seconds, "pending bonuses", market.referrals.pay_due, "pending bonuses"
        )
        tasks.every(
            times.exit_payout_seconds,
            "payouts of exits",
            market.exit_payouts.pay_due,
            "earnings of exits",
        )
        tasks.every(
            times.exit_advance_seconds,
            "advances of exits",
            market.exit_advances.advance_due,
            "earnings of sessions that go on",
        )
        tasks.every(times.exit_look_seconds, "exits", market.exits.look, "exits that were ended")
        tasks.spawn("dispatch", market.dispatch.run())
        if market.samples is not None:
            tasks.spawn("samples", market.samples.run())
        tasks.spawn("rollouts", market.rollouts.run())
        tasks.every(
            ROLLOUT_LOOK_SECONDS, "rollout looks", market.rollouts.sweep, "rollouts of deploys"
        )
        tasks.every(
            ARTIFACT_CHECK_SECONDS, "artifacts", self.tidy_artifacts, "files that nobody needs"
        )
        tasks.every(
            LOG_CHECK_SECONDS, "old logs", market.logs.keeper.sweep, "logs that are too old"
        )
        tasks.every(
            USAGE_CHECK_SECONDS, "old usage", market.usage.roll_up, "hours of usage that are old"
        )
        tasks.spawn("events of others", market.event_feed.run())
        tasks.spawn("events of other programs", market.event_feed.watch())
        tasks.spawn("usage frames", self.send_usage())
        tasks.every(EVENT_CHECK_SECONDS, "old events", market.event_feed.sweep, "old events")
        tasks.spawn("recovery", market.recovery.run())
        tasks.spawn("mail", self._mailer.run())
        tasks.every(WEBHOOK_LOOK_SECONDS, "webhooks", self.webhooks.look, "webhooks that are due")
        tasks.every(
            WEBHOOK_CHECK_SECONDS, "old webhooks", market.webhooks.sweep, "what was delivered"
        )
        tasks.every(
            KEY_CHECK_SECONDS, "API keys", market.keys.warn, "keys that are about to expire"
        )
        tasks.every(APP_KEY_CHECK_SECONDS, "app keys", market.apps.sweep, "keys of apps")
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

    def reload(self, settings: Settings, descriptors: int) -> None:
        """Take new limits; `descriptors` is how many may be open."""
        self.http.change_limits(slices.api_limits(settings, descriptors))
        self.market.change_bounds(slices.bounds(settings))
        self.market.event_feed.terms = slices.event_feed_terms(settings, descriptors)
        self.market.dispatch.terms = slices.dispatch_terms(settings, descriptors)

    def drain(self) -> None:
        """Begin no new request, and answer those that wait for work."""
        self.http.drain()
        self.market.event_feed.end()
        self.market.dispatch.drain()
        if self.app_port is not None:
            self.app_port.drain()

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
        await cancellation.within(CLOSE_SECONDS, self.http.stop(), "closing the API")
        await cancellation.within(CLOSE_SECONDS, self.webhooks.close(), "ending deliveries")
        # For devices that have gone away meanwhile, and whose jobs are being written down.
        settling = self.market.dispatch.claims.settle()
        await cancellation.within(CLOSE_SECONDS, settling, "giving the last jobs away")

    async def flush(self) -> None:
        """Write down the reports of devices.

        Raises:
            StoreError: it is lost, as after a crash.
        """
        await self.market.devices.reports.flush()
        await self.market.renewals.flush()

    async def close(self) -> None:
        """Close the parts that work for the marketplace, each within a bound."""
        self.market.passwords.close()
        await cancellation.within(
            CLOSE_SECONDS, asyncio.to_thread(self.market.logs.close), "writing the last logs"
        )
        self._photos.close()
        await cancellation.within(CLOSE_SECONDS, self._blobs.close(), "closing what keeps files")
        if self._model is not None:
            await cancellation.within(
                CLOSE_SECONDS, self._model.close(), "closing the model's client"
            )

    async def tidy_artifacts(self) -> None:
        """Delete files whose time is over.

        Raises:
            StoreError: they are deleted another time.
        """
        await self.market.artifacts.settle()
        await self.market.artifacts.expire()

    async def tell_silent(self) -> None:
        """Notify owners of devices that have become silent.

        Raises:
            StoreError: they are notified later.
        """
        await self.market.devices.tell_silent(self._observed_time.seconds())

    async def send_usage(self) -> None:
        """Show those who watch how fast their sessions are used, until cancelled."""
        while True:
            await asyncio.sleep(USAGE_FRAME_SECONDS)
            try:
                await self.market.event_feed.send_usage()
            except StoreError as error:  # others log that it is away
                _logger.debug("usage is shown later: %s", error)

    async def take_back(self) -> None:
        """Take jobs back from devices that are silent, or take too long.

        Raises:
            StoreError: devices may have been unable to send a sign of life, so that this time does
                not count.
        """
        taken = await self.market.job_sweeper.take_back()
        self._observed_time.tick()
        if taken:
            _logger.info("jobs taken back, because devices are silent or slow: %d", taken)
