"""Building the parts of the core (`core`): leases, the meter that spends them, the node."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from config.settings import Settings
from market.bandwidth.halts import Halts
from market.bandwidth.leases import Leases
from market.base.bus import BETWEEN_DAEMONS, BETWEEN_PROCESSES, Bus, Topic
from market.base.ids import Identifiers
from market.events.context import Context
from market.staff.abuse.exit_use import Found, Question
from proxyd.loop.clock import Clocks, ObservedTime
from proxyd.metering.fence import Fence
from proxyd.metering.meter import Meter, MeterBounds, cluster_meter, solo_meter
from proxyd.metering.node import Node
from proxyd.ops.access_log.access_answers import find
from proxyd.wiring.core import Core
from proxyd.wiring.halt_watch import HaltWatch
from proxyd.wiring.look_watch import LookWatch
from proxyd.wiring.market_work import MarketWork
from proxyd.wiring.membership import REAP_CHECK_SECONDS, Membership
from proxyd.wiring.new_accounts import new_accounts
from storage.engines.place import is_sqlite
from storage.engines.store import Link, Store


@dataclass(frozen=True, slots=True)
class Counting:
    """The parts that count bytes.

    Attributes:
        context: the store, identifiers, the time and the bus.
        leases: grant bytes, and take the counts.
        meter: counts the bytes of live sessions.
        node: this process among others; None where there can be no others.
        halt_watch: carries out the orders of the staff about sessions and devices.
        look_watch: answers questions about the records of this machine; None without other nodes.
    """

    context: Context
    leases: Leases
    meter: Meter
    node: Node | None
    halt_watch: HaltWatch
    look_watch: LookWatch | None = None


def counting_of(
    settings: Settings,
    store: Store,
    clocks: Clocks,
    forgotten: Callable[[str], None],
    bounds: MeterBounds,
    *,
    has_services: bool,
) -> Counting:
    """Return the parts that count bytes.

    Args:
        settings: the operator's settings.
        store: an open store.
        clocks: the clocks of the process.
        forgotten: called with each session that is not known here any more.
        bounds: the bounds of the parts of the meter.
        has_services: whether this process does the work that only one of a daemon's processes does.
    """
    link = store.link(settings.cluster.node_timeout_seconds)
    bus = Bus(_carried(settings, link))
    context = Context(store, Identifiers(clocks.milliseconds), clocks.seconds, bus)
    leases = Leases(context.set_aside(), new_accounts(settings))
    limits = settings.limits
    if link is None:
        meter = solo_meter(
            leases,
            context.now,
            connections_per_session=limits.connections_per_session,
            bytes_per_second=limits.session_bytes_per_second,
            forgotten=forgotten,
            bounds=bounds,
        )
        watch = HaltWatch(Halts(context.set_aside()), meter.halting, _no_name, leases.limited)
        return Counting(context, leases, meter, None, watch)
    fence = Fence(clocks.boottime)
    meter, writer = cluster_meter(
        leases,
        context.now,
        fence,
        connections_per_session=limits.connections_per_session,
        bytes_per_second=limits.session_bytes_per_second,
        forgotten=forgotten,
        bounds=bounds,
    )
    watch = HaltWatch(
        Halts(context.set_aside()), writer.halting, lambda: leases.node_id or "", leases.limited
    )
    look_watch = LookWatch(
        context,
        lambda: leases.node_id or "",
        partial(_find, settings, context) if has_services else None,
    )
    node = Node(
        link,
        leases,
        writer,
        fence,
        context.identifiers,
        clocks.boottime,
        ObservedTime(clocks.boottime, 2 * REAP_CHECK_SECONDS),
        timeout_seconds=settings.cluster.node_timeout_seconds,
        may_sweep=has_services,
        hearers=(watch, look_watch, bus) if has_services else (watch, look_watch),
    )
    return Counting(context, leases, meter, node, watch, look_watch)


def core_of(counting: Counting, work: MarketWork | None) -> Core:
    """Return the core.

    Args:
        counting: the parts that count bytes.
        work: the marketplace's own work; None in a process that has only the proxy.
    """
    context = counting.context
    membership = Membership(counting.leases, counting.node)
    if work is not None:
        counting.halt_watch.join(work.market.exits.look)
    return Core(
        context.store,
        membership,
        counting.meter,
        context.bus,
        counting.halt_watch,
        work,
        counting.look_watch,
    )


def _find(settings: Settings, context: Context, question: Question) -> Found:
    return find(settings, question, context.now())


def _no_name() -> str:
    """Return the name of a process that is not one of several nodes."""
    return ""


def _carried(settings: Settings, link: Link | None) -> Collection[Topic[Any]]:
    """Return the topics that have subscribers in other processes."""
    if link is None:
        return ()
    return BETWEEN_PROCESSES if is_sqlite(settings.storage.url) else BETWEEN_DAEMONS
