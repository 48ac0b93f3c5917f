"""The marketplace's own work: its sweeps, and the writers of the reports of devices.

It needs the store and no sockets. Of several processes, one does it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

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


class Sweep(NamedTuple):
    """A sweep, as `Tasks.every` takes it."""

    seconds: float  # between its runs
    name: str
    run: Callable[[], Awaitable[object]]
    waiting: str  # for the log: the work that waits while the store is away


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
        market = self.market
        tasks.spawn("heartbeats", market.devices.reports.run(), is_writer=True)
        tasks.spawn("renewals", market.renewals.run(), is_writer=True)
        tasks.spawn("addresses of devices", market.devices.origins.run(), is_writer=True)
        if self._is_held:
            return
        tasks.spawn("dispatch", market.dispatch.run())
        if market.samples is not None:
            tasks.spawn("samples", market.samples.run())
        tasks.spawn("rollouts", market.rollouts.run())
        tasks.spawn("events of others", market.event_feed.run())
        tasks.spawn("events of other programs", market.event_feed.watch())
        tasks.spawn("usage frames", self.send_usage())
        tasks.spawn("recovery", market.recovery.run())
        for sweeps in (
            self._of_sessions(),
            self._of_jobs(),
            self._of_devices(),
            self._of_money(),
            self._of_accounts(),
        ):
            for each in sweeps:
                tasks.every(*each)

    def _of_sessions(self) -> Iterator[Sweep]:
        """Yield the sweeps of sessions and of their stops."""
        market, often = self.market, self._times.expiry_seconds
        yield Sweep(often, "expiry", market.bandwidth.expire, "expired sessions")
        yield Sweep(
            WARN_CHECK_SECONDS, "sessions", market.bandwidth.warn, "sessions that are about to end"
        )
        yield Sweep(
            USAGE_CHECK_SECONDS, "old usage", market.usage.roll_up, "hours of usage that are old"
        )
        yield Sweep(often, "halts", market.suspensions.release_due, "halts of sessions to end")
        yield Sweep(often, "stops", market.rule_stops.follow, "stops of rules")
        yield Sweep(
            STOP_CHECK_SECONDS, "old stops", market.rule_stops.delete_old, "old stops of rules"
        )
        yield Sweep(
            DAILY_CHECK_SECONDS,
            "new accounts",
            self.halt_used_days,
            "new accounts that have used their day",
        )

    def _of_jobs(self) -> Iterator[Sweep]:
        """Yield the sweeps of jobs, deploys, their files and logs."""
        market = self.market
        yield Sweep(TAKE_BACK_CHECK_SECONDS, "abandoned jobs", self.take_back, "abandoned jobs")
        yield Sweep(
            JOB_EXPIRY_CHECK_SECONDS,
            "waiting jobs",
            market.job_sweeper.expire,
            "jobs that nobody takes",
        )
        yield Sweep(
            REVIEW_CHECK_SECONDS, "reviews", market.reviews.expire, "jobs that were not disputed"
        )
        yield Sweep(
            ROLLOUT_LOOK_SECONDS, "rollout looks", market.rollouts.sweep, "rollouts of deploys"
        )
        yield Sweep(
            ARTIFACT_CHECK_SECONDS, "artifacts", self.tidy_artifacts, "files that nobody needs"
        )
        yield Sweep(
            LOG_CHECK_SECONDS, "old logs", market.logs.keeper.sweep, "logs that are too old"
        )
        yield Sweep(APP_KEY_CHECK_SECONDS, "app keys", market.apps.sweep, "keys of apps")

    def _of_devices(self) -> Iterator[Sweep]:
        """Yield the sweeps of devices and exits."""
        market, times = self.market, self._times
        yield Sweep(
            SILENT_DEVICE_CHECK_SECONDS, "silent devices", self.tell_silent, "silent devices"
        )
        yield Sweep(
            STOP_CHECK_SECONDS,
            "old addresses of devices",
            market.devices.origins.delete_old,
            "old addresses of devices",
        )
        yield Sweep(times.exit_look_seconds, "exits", market.exits.look, "exits that were ended")

    def _of_money(self) -> Iterator[Sweep]:
        """Yield the sweeps of earnings, payments and payouts."""
        market, times = self.market, self._times
        yield Sweep(
            times.referral_seconds, "pending bonuses", market.referrals.pay_due, "pending bonuses"
        )
        yield Sweep(
            times.exit_payout_seconds,
            "payouts of exits",
            market.exit_payouts.pay_due,
            "earnings of exits",
        )
        yield Sweep(
            times.exit_advance_seconds,
            "advances of exits",
            market.exit_advances.advance_due,
            "earnings of sessions that go on",
        )
        yield Sweep(
            DEBT_CHECK_SECONDS,
            "debts",
            market.debt_sweeper.sweep,
            "debts that available money pays",
        )
        if self._payout_rounds:
            yield Sweep(
                times.payout_seconds,
                "payouts",
                self.send_payouts,
                "payouts that a payment service sends",
            )
        yield Sweep(
            times.payment_seconds, "payments", market.payments.sweep, "payments that are open"
        )
        yield Sweep(times.top_up_seconds, "top-ups", market.top_ups.sweep, "wallets to top up")
        yield Sweep(
            times.card_seconds, "cards", market.payments.cards.sweep, "cards to save or remove"
        )

    def _of_accounts(self) -> Iterator[Sweep]:
        """Yield the sweeps of accounts, keys, events and webhooks."""
        market = self.market
        yield Sweep(EVENT_CHECK_SECONDS, "old events", market.event_feed.sweep, "old events")
        yield Sweep(
            WEBHOOK_CHECK_SECONDS, "old webhooks", market.webhooks.sweep, "what was delivered"
        )
        yield Sweep(
            KEY_CHECK_SECONDS, "API keys", market.keys.warn, "keys that are about to expire"
        )
        yield Sweep(
            CLOSED_CHECK_SECONDS,
            "closed accounts",
            market.leaving.erasures.erase_due,
            "accounts to erase",
        )
        yield Sweep(
            self._times.expiry_seconds,
            "suspensions",
            market.suspensions.end_due,
            "suspensions to end",
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
