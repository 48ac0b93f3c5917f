"""The metrics: reads the daemon's plain counters into Prometheus' format at each scrape."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import NoReturn

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from api.reverse.server import AppServer
from api.staff.counts import StaffCounts
from market.dispatch.dispatch import Dispatch
from market.files.artifacts import Traffic
from market.logs.logs import Logs
from market.market import Market
from market.money.money import MICRO
from market.notify.webhooks import Webhooks
from proxyd.counters import LATENCY_BOUNDS_SECONDS, Latency, RuleCounters
from proxyd.exits.attached.listener import ExitListener
from proxyd.exits.dialling.tunnels import DeviceTunnels
from proxyd.gateway import Gateway
from proxyd.metering.meter import Meter
from proxyd.ops.access_log.access_log import AccessLog
from proxyd.ops.metrics.process_metrics import ProcessMetrics
from proxyd.ops.metrics.shared_metrics import SharedMetrics
from proxyd.ops.metrics.timed_store import TimedStore
from proxyd.ops.processes.role import Role
from proxyd.ops.watches.alert_watch import Upkeep
from storage.deploys.rollouts import StateRow as RolloutStateRow
from storage.deploys.rollouts import by_state as rollouts_by_state
from storage.engines.errors import Cause, StoreError, level_of
from storage.engines.health import Health
from storage.jobs.jobs import StateRow, by_state
from storage.money.ledger import TotalRow, totals
from storage.payments.watching import WaitingRow
from storage.site.alerts import WorkRow
from storage.trust.samples import OutcomeRow, by_outcome

# Twice a second shows a loop that stalls for long or often, and costs nothing.
LAG_CHECK_SECONDS = 0.5
ACCESS_DROPPED = "proxyd_access_dropped"
# Summing the balances reads every account, so it is not done for each scrape.
LEDGER_PAUSE_SECONDS = 60.0

REVIEW_STATES = ("held", "disputed")
ROLLOUT_STATES = ("progressing", "available", "stuck", "paused")
SAMPLE_OUTCOMES = ("right", "wrong", "none")
JOB_STATES = ("waiting", "running", *REVIEW_STATES)

_logger = logging.getLogger("metrics")


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts that the numbers are read from; `way` is how the data path runs.

    Without `market` this process has the proxy alone; `apps`, `exits`, `tunnels` and `staff` are
    None where apps are not reached, devices cannot attach, and there is no staff API.
    """

    gateway: Gateway
    meter: Meter
    store: TimedStore
    access_log: AccessLog | None
    rules: RuleCounters
    version: str
    way: str
    market: Market | None = None
    apps: AppServer | None = None
    exits: ExitListener | None = None
    tunnels: DeviceTunnels | None = None
    staff: StaffCounts | None = None


class Metrics(Collector):
    """The daemon's metrics, in a separate registry; measures the loop and the ledger itself.

    Args:
        role: the number of this process, if there are several; None where there is one.
    """

    def __init__(self, sources: Sources, role: Role | None = None) -> None:
        self._sources = sources
        self._lag = Latency()
        self._highest_traffic = (0, 0)  # bytes up and down, as they were last rendered
        self._ledger: list[TotalRow] = []
        self._jobs: list[StateRow] = []
        self._deploys: list[RolloutStateRow] = []
        self._samples: list[OutcomeRow] = []
        self.upkeep = Upkeep()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self.process = ProcessMetrics()
        self._registry.register(self.process)
        self.shared: SharedMetrics | None = None
        if role is not None:
            self.shared = SharedMetrics(role, self._registry.collect)
            self._all = CollectorRegistry(auto_describe=False)
            self._all.register(self.shared)

    def render(self) -> bytes:
        """Return every metric as text (Prometheus' exposition format, version 0.0.4).

        The metrics of several processes are added up.
        """
        # Here, because it brings the HTTP servers of two packages: some milliseconds, once.
        from prometheus_client.exposition import generate_latest  # noqa: PLC0415

        return generate_latest(self._registry if self.shared is None else self._all)

    def dropped_records(self) -> int:
        """Return the number of access records that the processes of this daemon have lost."""
        if self.shared is not None:
            return self.shared.total(ACCESS_DROPPED)
        log = self._sources.access_log
        return 0 if log is None else log.dropped

    def describe(self) -> list[Metric]:
        """Empty: the metric set is only known at collection time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read the counters."""
        yield from self._proxy()
        if self._sources.exits is not None:
            yield from _exits(self._sources.exits)
        if self._sources.tunnels is not None:
            yield from _tunnel_metrics(self._sources.tunnels)
        yield from self._rest()
        yield from self._money()
        if self._sources.market is not None:
            yield from _upkeep(self.upkeep, self._sources.market.context.now())
            yield from _payments(self._sources.market, self.upkeep.looked.money)
            yield _waiting(self.upkeep.looked.work)
        if self._sources.staff is not None:
            yield from _staff(self._sources.staff)

    async def watch_loop(self) -> NoReturn:
        """Measure how late the event loop is, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_CHECK_SECONDS
            await asyncio.sleep(LAG_CHECK_SECONDS)
            self._lag.observe(max(0.0, loop.time() - due))

    async def watch_ledger(self) -> NoReturn:
        """Sum the ledger's balances, and count jobs, once a minute until cancelled."""
        while True:
            try:
                self._ledger = await self._sources.store.read(totals)
                self._jobs = await self._sources.store.read(by_state)
                self._deploys = await self._sources.store.read(rollouts_by_state)
                self._samples = await self._sources.store.read(by_outcome)
            except StoreError as error:
                _logger.log(
                    level_of(error, logging.WARNING),
                    "ledger totals wait for the store to return: %s",
                    error,
                )
            await asyncio.sleep(LEDGER_PAUSE_SECONDS)

    def _proxy(self) -> Iterator[Metric]:
        gateway = self._sources.gateway
        counters = gateway.counters
        yield _gauge("proxyd_connections_open", "Clients connected", gateway.connections)
        yield _gauge("proxyd_handshakes_waiting", "Clients not admitted yet", gateway.handshakes)
        yield _gauge("proxyd_dials_waiting", "Clients that wait for a target", gateway.dialing)
        yield _gauge("proxyd_tcp_relays", "TCP connections relayed", gateway.relays)
        yield _gauge("proxyd_udp_associations", "UDP associations", gateway.associations)
        yield _gauge("proxyd_sockets_closing", "Sockets with last bytes", len(gateway.closer))
        yield _gauge("proxyd_pipes_lent", "Pipes with bytes that wait", gateway.pipes_lent)
        yield _gauge("proxyd_sessions_live", "Sessions in memory", self._sources.meter.live)
        yield _count("proxyd_connections", "Clients accepted", counters.accepted)
        yield _count("proxyd_connections_refused", "Clients over a limit", counters.refused)
        over_rate = gateway.datagrams_over_rate
        yield _count("proxyd_udp_datagrams_over_rate", "Datagrams dropped, too many", over_rate)
        yield _labelled("proxyd_relays", "Relays begun", "protocol", counters.relays)
        # A broken connection gives bytes back. A counter must not fall: to Prometheus that is a
        # restart, after which all bytes count again.
        up, down = map(max, self._highest_traffic, gateway.traffic())
        self._highest_traffic = up, down
        yield _labelled("proxyd_bytes", "Bytes relayed", "direction", {"up": up, "down": down})
        failed = counters.handshake_failures
        yield _labelled("proxyd_handshake_failures", "Clients not admitted", "reason", failed)
        yield _labelled("proxyd_dial_failures", "Failed dials", "reason", counters.dial_failures)
        yield _histogram(
            "proxyd_dial_seconds", "Time to the outcome of a dial", {"": counters.dials}
        )

    def _rest(self) -> Iterator[Metric]:
        sources = self._sources
        yield _histogram("proxyd_loop_lag_seconds", "How late the loop was", {"": self._lag})
        yield _histogram(
            "proxyd_store_seconds",
            "Time of a unit of work",
            {"read": sources.store.reads, "write": sources.store.writes},
            label="operation",
        )
        yield from _database(sources.store.health())
        if sources.market is not None:
            waiting = sources.market.emails.waiting
            yield _gauge("proxyd_mail_waiting", "E-mails that wait", waiting)
            yield from _deliveries(sources.market.webhooks)
        log = sources.access_log
        yield _count("proxyd_access_records", "Records written", log.written if log else 0)
        yield _count(ACCESS_DROPPED, "Records dropped", log.dropped if log else 0)
        yield _labelled("proxyd_rule_findings", "By rule", "rule", sources.rules.found)
        yield _labelled("proxyd_rule_stops", "By rule", "rule", sources.rules.stopped)
        build = GaugeMetricFamily("proxyd_build_info", "Which program", labels=["version", "way"])
        build.add_metric([sources.version, sources.way], 1)
        yield build

    def _money(self) -> Iterator[Metric]:
        money = GaugeMetricFamily(
            "proxyd_ledger_balance",
            "Sum of balances, a minute old at most",
            labels=["kind", "currency"],
        )
        for row in self._ledger:
            money.add_metric([row.kind, row.currency], row.amount / MICRO)
        yield money
        market = self._sources.market
        if market is not None:
            yield from self._work(market)
            yield from _dispatched(market.dispatch)
            yield from _artifacts(market.artifacts.traffic)

    def _work(self, market: Market) -> Iterator[Metric]:
        ends = market.jobs.notices.attempt_ends
        yield _labelled("proxyd_attempts", "Attempts at jobs that ended", "outcome", ends)
        rows = {row.state: row for row in self._jobs}
        found = [rows.get(state) or StateRow(state, 0, 0) for state in JOB_STATES]
        jobs = {row.state: row.jobs for row in found}
        yield _gauges("proxyd_jobs", "Open jobs, and those in review", "state", jobs)
        review = {row.state: row.earned / MICRO for row in found if row.state in REVIEW_STATES}
        words = "What workers wait for of jobs in review"
        yield _gauges("proxyd_review_credits", words, "state", review)
        counts = {row.outcome: row.samples for row in self._samples}
        samples = {outcome: counts.get(outcome, 0) for outcome in SAMPLE_OUTCOMES}
        words = "Jobs of known answer, as all daemons have seen"
        yield _labelled("proxyd_samples", words, "result", samples)
        replicas = {"start": market.rollouts.started, "stop": market.rollouts.stopped}
        words = "Replicas started and stopped"
        yield _labelled("proxyd_rollout_replicas", words, "step", replicas)
        counts = {row.state: row.deploys for row in self._deploys}
        deploys = {state: counts.get(state, 0) for state in ROLLOUT_STATES}
        words = "Deploys that say what they run and are not over"
        yield _gauges("proxyd_deploys", words, "state", deploys)
        if self._sources.apps is not None:
            yield from _apps(self._sources.apps)
        yield from _logs(market.logs)


def _payments(market: Market, money: WaitingRow) -> Iterator[Metric]:
    counts = market.payments.counts
    states = {"open": money.open_payments, "doubtful": money.doubtful_payments}
    yield _gauges("proxyd_payments", "Payments that wait", "state", states)
    yield _gauge("proxyd_payment_disputes", "Payments that banks dispute", money.disputes)
    states = {"requested": money.payouts, "late": money.late_payouts}
    yield _gauges("proxyd_payouts", "Payouts that wait", "state", states)
    words = "Notices of payment providers that were refused"
    yield _labelled("proxyd_payment_hooks_refused", words, "reason", counts.hooks_refused)
    words = "Requests that payment providers did not carry out"
    yield _labelled("proxyd_payment_provider_errors", words, "provider", counts.provider_errors)


def _logs(logs: Logs) -> Iterator[Metric]:
    totals = logs.totals
    yield _count("proxyd_log_bytes", "Bytes of logs stored", totals.stored_bytes)
    yield _count("proxyd_log_bytes_refused", "Bytes of logs without room", totals.refused_bytes)
    yield _gauge("proxyd_log_readers", "Buyers who follow a log", len(logs.readers))


def _database(health: Health) -> Iterator[Metric]:
    is_up = health.trouble is None
    yield _gauge("proxyd_store_up", "Whether the database accepts writes", int(is_up))
    failures = {cause.value: health.failures.get(cause, 0) for cause in Cause}
    words = "Units of work that were refused"
    yield _labelled("proxyd_store_failures", words, "reason", failures)
    yield _count("proxyd_store_repeated", "Units of work that were run again", health.repeated)
    yield _count("proxyd_store_failovers", "Moves to another server", health.failovers)
    server = {health.server: int(is_up)} if health.server else {}
    yield _gauges("proxyd_store_server", "The server that accepts writes", "host", server)


def _artifacts(traffic: Traffic) -> Iterator[Metric]:
    moved = {"received": traffic.received_bytes, "sent": traffic.sent_bytes}
    words = "Bytes of jobs' files through the API"
    yield _labelled("proxyd_artifact_bytes", words, "direction", moved)
    ends = {"whole": traffic.finished, "mismatch": traffic.mismatches}
    words = "Files of jobs that were sent to the end"
    yield _labelled("proxyd_artifacts", words, "outcome", ends)


def _apps(server: AppServer) -> Iterator[Metric]:
    streams = server.streams
    yield _gauge("proxyd_app_connections", "Clients of apps", server.connections)
    yield _gauge("proxyd_app_streams", "Requests and WebSockets into apps", len(streams))
    moved = {"received": streams.totals.received, "sent": streams.totals.sent}
    words = "Bytes of bodies into and out of apps"
    yield _labelled("proxyd_app_bytes", words, "direction", moved)
    requests = {"answered": streams.totals.requests, "refused": streams.refused}
    words = "Requests for apps, by what became of them"
    yield _labelled("proxyd_app_requests", words, "outcome", requests)
    yield _count("proxyd_app_streams_ended", "Streams that were ended from here", streams.ended)


def _deliveries(webhooks: Webhooks) -> Iterator[Metric]:
    yield _labelled("proxyd_webhook_attempts", "Attempts at webhooks", "outcome", webhooks.ends)
    yield _gauge("proxyd_webhook_waiting", "Webhooks that wait", webhooks.waiting.deliveries)
    yield _gauge("proxyd_webhook_late_seconds", "Webhooks are late by", webhooks.late_seconds)


def _dispatched(dispatch: Dispatch) -> Iterator[Metric]:
    jobs, claims = dispatch.jobs, dispatch.claims
    yield _gauge("proxyd_dispatch_jobs", "Jobs in memory for which no device waits", len(jobs))
    yield _gauge("proxyd_dispatch_shapes", "Different needs of these jobs", jobs.shapes)
    words = "Devices whose requests for work are held"
    yield _gauge("proxyd_dispatch_devices", words, dispatch.held)
    yield _count("proxyd_claims", "Jobs given to devices that asked for work", claims.claimed)
    yield _count("proxyd_claims_taken", "Jobs that another device had taken before", claims.taken)
    words = "Time in transactions that give jobs to devices"
    yield _count("proxyd_claim_seconds", words, claims.seconds)


def _tunnel_metrics(tunnels: DeviceTunnels) -> Iterator[Metric]:
    """Return the metrics of streams into jobs."""
    yield _gauge("proxyd_tunnel_devices", "Devices attached as workers", len(tunnels))
    yield _gauge("proxyd_tunnel_streams", "Streams into jobs that are open", tunnels.streams)
    yield _count("proxyd_tunnel_attachments", "Devices that have attached", tunnels.counts.attached)
    received, sent = tunnels.moved
    gone, opens = tunnels.counts.gone, tunnels.counts.opens
    yield _labelled("proxyd_tunnel_gone", "Workers that were let go of", "reason", gone)
    yield _labelled("proxyd_tunnel_opens", "Streams asked for", "outcome", opens)
    moved = {"from_job": received, "to_job": sent}
    yield _labelled("proxyd_tunnel_bytes", "Bytes of streams", "direction", moved)


def _upkeep(upkeep: Upkeep, now: int) -> Iterator[Metric]:
    """Return the figures of the newest look at the machine, the backups and the audits."""
    disks = GaugeMetricFamily("proxyd_disk_free_ratio", "Free share of a disk", labels=["folder"])
    for name, share in upkeep.free.items():
        disks.add_metric([name], share)
    yield disks
    certificates = GaugeMetricFamily(
        "proxyd_certificate_seconds", "Seconds until a certificate expires", labels=["section"]
    )
    for name, seconds in upkeep.certificates.items():
        certificates.add_metric([name], seconds)
    yield certificates
    age = GaugeMetricFamily("proxyd_backup_age_seconds", "Age of the newest backup")
    if upkeep.looked.backup is not None:
        age.add_metric([], now - upkeep.looked.backup.at)
    yield age
    audit = GaugeMetricFamily("proxyd_audit_passed", "Whether the newest audit found no difference")
    if upkeep.looked.audit is not None:
        audit.add_metric([], upkeep.looked.audit.has_passed)
    yield audit
    words = "Rescues of operators that no other operator has acknowledged"
    yield _gauge("proxyd_staff_rescues", words, upkeep.looked.rescues)


def _waiting(work: WorkRow) -> Metric:
    numbers = work._asdict()
    return _gauges("proxyd_staff_waiting", "Work that waits for the staff", "kind", numbers)


def _staff(counts: StaffCounts) -> Iterator[Metric]:
    """Return the numbers of requests to the staff API."""
    requests = CounterMetricFamily(
        "proxyd_staff_requests", "Requests to the staff API", labels=["operation", "result"]
    )
    for labels, number in sorted(counts.requests.items()):
        requests.add_metric(labels, number)
    yield requests
    words = "Wrong passwords and codes at the staff API"
    yield _count("proxyd_staff_failed_logins", words, counts.failed_logins)


def _exits(listener: ExitListener) -> Iterator[Metric]:
    counters = listener.counters
    countries = listener.offers.by_country()
    yield _gauges("proxyd_exits", "Exits that take some", "country", countries)
    yield _gauge("proxyd_exits_attached", "Exits attached", len(listener))
    yield _gauge("proxyd_exits_nodes", "Other nodes whose exits are known", listener.nodes)
    borrowed, lent = listener.loaner.counts()
    yield _gauge("proxyd_exits_borrowed", "Exits of other nodes that are used here", borrowed)
    yield _gauge("proxyd_exits_lent", "Exits of this node that others use, once for each", lent)
    yield _gauge("proxyd_exits_parked", "Connections of exits that wait", counters.parked)
    arrivals = len(listener.arrivals)
    yield _gauge("proxyd_exits_arrivals", "Connections that have said nothing", arrivals)
    yield _count("proxyd_exits_attachments", "Exits that have attached", counters.attached)
    yield _count("proxyd_exit_failovers", "Dials that another exit took over", counters.failovers)
    yield _count("proxyd_exit_hedges", "Orders that were given twice", counters.hedges)
    for name, description, label, numbers in (
        ("proxyd_exits_refused", "Exits that were not taken", "reason", counters.refused),
        ("proxyd_exits_gone", "Exits that were let go of", "reason", counters.cut),
        (
            "proxyd_exits_arrivals_refused",
            "Connections to the port of exits that were closed",
            "reason",
            counters.arrivals_refused,
        ),
        ("proxyd_exit_dials", "Orders to exits", "outcome", counters.dials),
        ("proxyd_exit_canaries", "Looks at exits' honesty", "outcome", counters.canaries),
        ("proxyd_exit_canary_failures", "Exits that lied", "kind", counters.canary_failures),
    ):
        yield _labelled(name, description, label, numbers)
    yield _histogram("proxyd_exit_dial_seconds", "Time to a target", {"": counters.seconds})


def _gauge(name: str, description: str, value: float) -> Metric:
    return GaugeMetricFamily(name, description, value)


def _count(name: str, description: str, value: float) -> Metric:
    return CounterMetricFamily(name, description, value)


def _labelled(name: str, description: str, label: str, numbers: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, description, labels=[label])
    for value, number in numbers.items():
        family.add_metric([value], number)
    return family


def _gauges(name: str, description: str, label: str, numbers: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, description, labels=[label])
    for value, number in numbers.items():
        family.add_metric([value], number)
    return family


def _histogram(
    name: str, description: str, latencies: dict[str, Latency], label: str | None = None
) -> Metric:
    family = HistogramMetricFamily(name, description, labels=[label] if label else [])
    bounds = [*(str(each) for each in LATENCY_BOUNDS_SECONDS), "+Inf"]
    for value, latency in latencies.items():
        counts = zip(bounds, accumulate(latency.counts), strict=True)
        family.add_metric([value] if label else [], list(counts), latency.seconds)
    return family
