"""The marketplace's own work: its sweeps, and the writers of the reports of devices.

It needs the store and no sockets. Of several processes, one does it.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from market.market import Market
from market.payouts.providers import ProviderRounds
from proxyd.loop import clock
from proxyd.wiring.tasks import Tasks
from storage.engines.errors import StoreError

WARN_CHECK_SECONDS = 60.0  # buyers get a day's notice, for at most 500 sessions each time
DEBT_CHECK_SECONDS = 30.0  # the account buys nothing meanwhile
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
WEBHOOK_CHECK_SECONDS = 15.0  # longest time of an endpoint above its limit of waiting deliveries
USAGE_CHECK_SECONDS = 600.0  # it has work once a day, and no caller waits for it
DAILY_CHECK_SECONDS = 5.0  # a new account exceeds its bytes of a day by this time of traffic
STOP_CHECK_SECONDS = 600.0  # rows of 30 days ago
LOG_CHECK_SECONDS = 15.0  # longest time of a user above their limit of logs
CLOSED_CHECK_SECONDS = 60.0  # accounts have been closed for 14 days

_logger = logging.getLogger("daemon")


@dataclass(frozen=True, slots=True)
class CheckTimes:
    """Intervals of the checks of sessions, bonuses, exits and payments.

    Attributes:
        expiry_seconds: a session outlives its time by no more than this.
        referral_seconds: how long a bonus takes once an address is confirmed, at most.
        exit_look_seconds: an owner's own decision bites at once; this is for those of other
            processes, and for places.
        exit_payout_seconds: owners have waited for days, and an hour's owners fit in one.
        exit_advance_seconds: each hour's advance begins within a minute of the hour.
        payment_seconds: the longest wait of a refund, and of a payment whose notice was lost.
        top_up_seconds: a session of a thousand connections spends a dollar in it.
        card_seconds: notices of the provider come first.
        payout_seconds: a payment service takes minutes to hours for a batch.
    """

    expiry_seconds: float = 2.0
    referral_seconds: float = 10.0
    exit_look_seconds: float = 5.0
    exit_payout_seconds: float = 60.0
    exit_advance_seconds: float = 60.0
    payment_seconds: float = 15.0
    top_up_seconds: float = 15.0
    card_seconds: float = 60.0
    payout_seconds: float = 60.0


USUAL: Final = CheckTimes()


class MarketWork:
    """Runs the sweeps of a marketplace.

    Args:
        market: the marketplace.
        observed_time: for how long this daemon has been there to hear devices.
        times: how often sessions, bonuses, exits and payments are checked.
        payout_rounds: of the payment services that send payouts.
        is_held: whether the sweeps wait for the confirmation of a restored database.
    """

    def __init__(
        self,
        market: Market,
        observed_time: clock.ObservedTime,
        times: CheckTimes = USUAL,
        payout_rounds: Sequence[ProviderRounds] = (),
        *,
        is_held: bool = False,
    ) -> None:
        self.market = market
        self._observed_time = observed_time
        self._times = times
        self._payout_rounds = payout_rounds
        self._is_held = is_held

    def spawn_tasks(self, tasks: Tasks) -> None:
        """Start the sweeps and the writers."""
        market, times = self.market, self._times
        tasks.spawn("heartbeats", market.devices.reports.run(), is_writer=True)
        tasks.spawn("renewals", market.renewals.run(), is_writer=True)
        tasks.spawn("addresses of devices", market.devices.origins.run(), is_writer=True)
        if self._is_held:
            return
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
            DEBT_CHECK_SECONDS,
            "debts of earnings",
            market.earning_debts.sweep,
            "debts that earnings pay",
        )
        if self._payout_rounds:
            tasks.every(
                times.payout_seconds,
                "payouts",
                self.send_payouts,
                "payouts that a payment service sends",
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
        tasks.every(
            times.payment_seconds, "payments", market.payments.sweep, "payments that are open"
        )
        tasks.every(times.top_up_seconds, "top-ups", market.top_ups.sweep, "wallets to top up")
        tasks.every(
            times.card_seconds, "cards", market.payments.cards.sweep, "cards to save or remove"
        )
        tasks.every(
            WEBHOOK_CHECK_SECONDS, "old webhooks", market.webhooks.sweep, "what was delivered"
        )
        tasks.every(
            KEY_CHECK_SECONDS, "API keys", market.keys.warn, "keys that are about to expire"
        )
        tasks.every(APP_KEY_CHECK_SECONDS, "app keys", market.apps.sweep, "keys of apps")
        tasks.every(
            CLOSED_CHECK_SECONDS,
            "closed accounts",
            market.leaving.erasures.erase_due,
            "accounts to erase",
        )
        tasks.every(
            times.expiry_seconds,
            "halts",
            market.suspensions.release_due,
            "halts of sessions to end",
        )
        tasks.every(times.expiry_seconds, "stops", market.rule_stops.follow, "stops of rules")
        tasks.every(
            DAILY_CHECK_SECONDS,
            "new accounts",
            self.halt_used_days,
            "new accounts that have used their day",
        )
        tasks.every(
            STOP_CHECK_SECONDS,
            "old addresses of devices",
            market.devices.origins.delete_old,
            "old addresses of devices",
        )
        tasks.every(
            STOP_CHECK_SECONDS, "old stops", market.rule_stops.delete_old, "old stops of rules"
        )
        tasks.every(
            times.expiry_seconds, "suspensions", market.suspensions.end_due, "suspensions to end"
        )

    async def send_payouts(self) -> int:
        """Run a round of each payment service; return the number of payouts that ended.

        Raises:
            StoreError: the store did not answer.
        """
        return sum([await each.run() for each in self._payout_rounds])

    async def flush(self) -> None:
        """Write down the reports of devices.

        Raises:
            StoreError: it is lost, as after a crash.
        """
        await self.market.devices.reports.flush()
        await self.market.renewals.flush()
        await self.market.devices.origins.flush()

    async def tidy_artifacts(self) -> None:
        """Delete files whose time is over.

        Raises:
            StoreError: they are deleted another time.
        """
        await self.market.artifacts.settle()
        await self.market.artifacts.expire()

    async def halt_used_days(self) -> None:
        """Halt the sessions of new accounts that have used the bytes of their day.

        Raises:
            StoreError: they are halted later.
        """
        await self.market.rule_stops.halt_used_days(self.market.leases.new_accounts)

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
