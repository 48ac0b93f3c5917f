"""The marketplace: every service, built once, by the same code for the daemon and for tests.

A new service is a line here, and a line of `api.app.routes` for its endpoints.
"""

import time
from collections.abc import Callable, Mapping

from msgspec import Struct

from market.accounts.accounts import Accounts, LoginLimits
from market.accounts.bounds import Bounds, CurrentBounds
from market.accounts.device_codes import DeviceCodes
from market.accounts.keys import ApiKeys
from market.accounts.letters import Letters
from market.accounts.outbox import Outbox
from market.accounts.passwords import Passwords
from market.accounts.proofs import Proofs
from market.accounts.referrals import Referrals, Rewards
from market.accounts.tokens import Tokens
from market.accounts.wallet import Wallet
from market.attempts.renewals import Renewals
from market.bandwidth.leases import Leases
from market.bandwidth.sessions import Bandwidth, Terms, Traffic
from market.bandwidth.usage import UsageHistory
from market.base.sealing import Sealing
from market.deploys.apps import Apps
from market.deploys.deploys import Deploys, Rates
from market.deploys.rollouts import Rollouts
from market.devices.devices import Devices
from market.dispatch.asks import DispatchTerms
from market.dispatch.device_work import DeviceWork
from market.dispatch.dispatch import Dispatch
from market.dispatch.samples import Samples, SampleTerms
from market.dispatch.supply import Supply
from market.erasure.acts import OwnActs
from market.erasure.closing import Closing
from market.erasure.erasing import Tools
from market.erasure.exports import ExportPlace, Exports
from market.events.context import Context
from market.exits.canaries import ExitCanaries
from market.exits.consents import NO_EXITS, Exits, ExitTerms
from market.exits.earnings import ExitAdvances
from market.exits.payouts import ExitPayouts
from market.files.artifacts import Artifacts, ArtifactTerms
from market.jobs.answers import Answers
from market.jobs.appeals import Appeals
from market.jobs.attempt_reports import AttemptReports
from market.jobs.jobs import Jobs
from market.jobs.overdue import Overdue
from market.jobs.reviews import Reviews
from market.jobs.specs import Specs
from market.jobs.sweeper import JobSweeper
from market.jobs.terms import JobTerms
from market.logs.logs import Logs, LogTerms
from market.notify.feed import EventFeed, EventFeedTerms
from market.notify.live_usage import LiveUsage, LiveUses
from market.notify.webhooks import Webhooks, WebhookTerms
from market.payments.particulars import BuyerParticulars
from market.payments.payments import Payments
from market.payments.provider import Provider
from market.payments.terms import PaymentTerms
from market.payments.top_ups import TopUps
from market.payouts.collecting import DebtSweeper
from market.payouts.connect import Connect
from market.payouts.payouts import Payouts
from market.payouts.terms import PayoutTerms
from market.recovery.made_by_keys import MadeByKeys
from market.recovery.recovery import Recovery
from market.site.gate import Gate, SiteTerms
from market.site.status import Status
from market.site.texts import Texts
from market.staff.base.requests import end_before_closing
from market.staff.leaving.erasing import Erasures
from market.staff.rule_stops import RuleStops
from market.staff.stopping.suspending import Suspensions
from storage.blobs.base import Blobs


class Rules(Struct, frozen=True):
    """Settings of the operator for the marketplace, a slice for each service.

    `app_url` is the target of the links in e-mails. `exports` is the place of exports.
    `origin_days` are the days that addresses of devices are kept, 0 for no records.
    """

    terms: Terms
    jobs: JobTerms
    rates: Rates
    rewards: Rewards
    bounds: Bounds
    login_limits: LoginLimits
    app_url: str
    exits: ExitTerms = NO_EXITS
    dispatch: DispatchTerms = DispatchTerms()
    artifacts: ArtifactTerms = ArtifactTerms()
    logs: LogTerms = LogTerms()
    deploy_images: Mapping[str, str] = {}
    samples: SampleTerms = SampleTerms()
    webhooks: WebhookTerms = WebhookTerms()
    event_feed: EventFeedTerms = EventFeedTerms()
    site: SiteTerms = SiteTerms()
    exports: ExportPlace = ExportPlace()
    payments: PaymentTerms = PaymentTerms()
    payouts: PayoutTerms = PayoutTerms()
    stops_to_suspend: int = 3
    origin_days: int = 0


class Keys(Struct, frozen=True):
    """Protection of accounts, e-mails, secrets of jobs and keys: hashing, signing, sealing."""

    passwords: Passwords
    tokens: Tokens
    sealing: Sealing
    job_secrets: Sealing
    app_keys: Sealing
    webhook_secrets: Sealing
    payout_methods: Sealing


class Leaving(Struct, frozen=True):
    """Exports, closings and erasures of accounts, and acts of the staff for their users."""

    exports: Exports
    closing: Closing
    erasures: Erasures
    acts: OwnActs


class Market:
    """Every service of the marketplace.

    The meter spends the leases, and the sale of sessions needs its live counts. So `leases` are
    built first, then the meter, then this.

    Args:
        keys: hash passwords, sign tokens, seal waiting e-mails and the secrets of jobs.
        observed_seconds: seconds in which this daemon could receive reports of devices.
        live_uses: the live use of sessions in the memory of this process.
        providers: the payment providers by name, the preferred one first.
        connect: the payment service with accounts of users for payouts.
        is_shared: whether other daemons work on the same store.
        monotonic: a clock that is never set, in seconds.
    """

    def __init__(  # noqa: PLR0915 - a line for each service
        self,
        context: Context,
        rules: Rules,
        keys: Keys,
        *,
        leases: Leases,
        traffic: Traffic,
        observed_seconds: Callable[[], float],
        blobs: Blobs,
        live_uses: LiveUses | None = None,
        providers: Mapping[str, Provider] | None = None,
        connect: Connect | None = None,
        is_shared: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        passwords, limits = keys.passwords, rules.login_limits
        self.bounds = CurrentBounds(rules.bounds)
        self.context = context
        self.passwords = passwords
        self.tokens = keys.tokens
        self.emails = Outbox(context, keys.sealing, "mail")
        self.site = rules.site
        self.letters = letters = Letters(self.emails, rules.app_url, rules.site.signature)
        proofs = Proofs(context, self.emails, rules.app_url, rules.site.signature)
        self.texts = Texts(context)
        self.status = Status(context)
        self.gate = gate = Gate(context, rules.site.registration, keys.sealing)
        self.accounts = Accounts(
            context,
            passwords,
            keys.tokens,
            limits,
            rules.rewards,
            proofs,
            letters,
            gate,
        )
        self.keys = ApiKeys(context, letters, gate)
        self.suspensions = Suspensions(context, letters)
        self.rule_stops = RuleStops(context, letters, rules.stops_to_suspend)
        self.wallet = Wallet(context)
        self.payments = Payments(context, rules.payments, providers or {}, letters, rules.app_url)
        self.particulars = BuyerParticulars(context)
        self.top_ups = TopUps(context, self.payments, letters)
        return_url = f"{rules.app_url}/console/earnings"
        self.payouts = Payouts(
            context, keys.payout_methods, letters, rules.payouts, connect, return_url
        )
        self.referrals = Referrals(context, rules.rewards)
        self.leases = leases
        self.bandwidth = Bandwidth(
            context, leases, traffic, rules.terms, self.bounds, exit_terms=rules.exits
        )
        self.usage = UsageHistory(context, leases, traffic)
        self.event_feed = EventFeed(
            context, rules.event_feed, LiveUsage(context, leases, live_uses, monotonic)
        )
        self.webhooks = Webhooks(context, keys.webhook_secrets, letters, rules.webhooks)
        self.device_codes = DeviceCodes(context, letters, rules.app_url)
        self.devices = Devices(
            context, self.bounds, is_shared=is_shared, origin_days=rules.origin_days
        )
        self.exits = Exits(context, self.devices, rules.exits)
        self.exit_advances = ExitAdvances(context)
        self.exit_canaries = ExitCanaries(context, self.exits)
        self.exit_payouts = ExitPayouts(context, rules.exits.hold_seconds)
        self.renewals = Renewals(context)
        self.logs = Logs(context, rules.logs, monotonic, self.renewals.renew, is_shared=is_shared)
        self.specs = Specs(keys.job_secrets)
        overdue = Overdue(context, self.devices, self.renewals, rules.jobs.leases, observed_seconds)
        self.jobs = Jobs(context, rules.jobs, self.bounds, self.specs, self.logs)
        self.job_sweeper = JobSweeper(
            context, overdue, self.jobs.outcomes, self.jobs.notices, rules.jobs.waiting_seconds
        )
        self.samples: Samples | None = None
        if rules.samples.is_on:
            self.samples = Samples(context, rules.samples, self.specs, self.bounds)
        self.dispatch = Dispatch(
            context,
            self.specs,
            self.bounds,
            rules.dispatch,
            self.jobs.end_unreadable,
            self.samples,
        )
        self.supply = Supply(
            self.dispatch.devices.asking,
            self.dispatch.pairing.prices,
            lambda address: self.exits.attached.locate(address).country,
            monotonic,
        )
        self.device_work = DeviceWork(context, self.devices, self.dispatch, is_shared=is_shared)
        self.attempt_reports = AttemptReports(
            context,
            self.devices,
            self.job_sweeper,
            self.renewals,
            self.logs,
            observed_seconds,
        )
        self.reviews = Reviews(context, letters)
        self.debt_sweeper = DebtSweeper(context)
        self.artifacts = Artifacts(context, blobs, rules.artifacts)
        self.rollouts = Rollouts(context, self.jobs, self.specs)
        self.deploys = Deploys(context, self.jobs, self.rollouts, rules.rates, rules.deploy_images)
        self.apps = Apps(context, keys.app_keys, self.specs)
        self.made_by_keys = MadeByKeys(context, self.devices, self.exits, self.job_sweeper)
        self.recovery = Recovery(
            context,
            passwords,
            proofs,
            Outbox(context, keys.sealing, "forgotten password"),
            letters,
            self.accounts,
            limits,
            self.made_by_keys.ended,
        )
        self.leaving = Leaving(
            Exports(context, self.artifacts, self.logs.disk, rules.exports),
            Closing(
                context,
                self.accounts,
                letters,
                self.bandwidth,
                self.made_by_keys,
                end_before_closing,
            ),
            Erasures(context, Tools(letters, keys.sealing)),
            OwnActs(context),
        )

    @property
    def answers(self) -> Answers:
        """The answers of workers to disputes; they keep no state."""
        return Answers(self.context)

    @property
    def appeals(self) -> Appeals:
        """The appeals of both sides of a dispute; they keep no state."""
        return Appeals(self.context)

    def change_bounds(self, bounds: Bounds) -> None:
        """Hold each user to other bounds from now on; nothing that is open is ended."""
        self.bounds.change(bounds)
