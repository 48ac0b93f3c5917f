"""The modules that are compiled: what runs for each connection, message, datagram and API request.

Code that runs once a second, or waits for the store most of its time, gains nothing and is left
out. A module belongs here with its neighbours: a call between two compiled modules is a call in C,
any other goes through Python's objects. No interpreted class may inherit from one of these modules.
One of another room than `proxyd` must not be imported before `proxyd`; the finder notices.

Rules for these sources: a part that a test replaces is handed in, through a protocol or a callable,
or belongs to a module that is not compiled, because a compiled call does not look up its target. A
constant that a test replaces is not `Final`, because the value of a `Final` is compiled in.

A coroutine here awaits nothing while it handles an exception. Compiled by mypyc, it would leave the
exception behind as the one that its thread handles, and a later call could raise it: of one request
for another. Only `async with asyncio.timeout` may stand here, because it awaits nothing at its end.
"""

HOT = (
    # a client, from accept to close
    "proxyd.access",
    "proxyd.acceptor",
    "proxyd.connection",
    "proxyd.counters",
    "proxyd.gateway",
    "proxyd.handshake",
    "proxyd.limits",
    # networks for counting clients
    "market.base.networks",
    # a request of the API, from its route to its handler
    "api.http.forwarded",
    "api.http.rate",
    "api.http.request_id",
    "api.routing.callers",
    "api.routing.router",
    "api.serving.calls",
    "market.base.ids",
    "market.money.money",
    # sockets, deadlines and turns
    "proxyd.loop.alarms",
    "proxyd.loop.deadlines",
    "proxyd.loop.fair_slots",
    "proxyd.loop.pipes",
    "proxyd.loop.poller",
    "proxyd.loop.reactor",
    "proxyd.loop.turns",
    # bytes between client and target
    "proxyd.relay.closing",
    "proxyd.relay.exit_datagrams",
    "proxyd.relay.first_answer",
    "proxyd.relay.halfpipe",
    "proxyd.relay.path",
    "proxyd.relay.tcp",
    "proxyd.relay.udp",
    # the protocols of clients
    "proxyd.wire.datagram",
    "proxyd.wire.detect",
    "proxyd.wire.events",
    "proxyd.wire.hosts",
    "proxyd.wire.http",
    "proxyd.wire.http_refusals",
    "proxyd.wire.http_request",
    "proxyd.wire.socks5",
    "proxyd.wire.wants",
    # the way to a target
    "proxyd.egress.candidates",
    "proxyd.egress.direct",
    "proxyd.egress.dns_cache",
    "proxyd.egress.exit",
    "proxyd.egress.lookup",
    "proxyd.egress.names",
    "proxyd.egress.own",
    "proxyd.egress.resolve",
    "proxyd.exits.processes.answering",
    "proxyd.exits.processes.asking",
    "proxyd.exits.attached.allowance",
    "proxyd.exits.attached.arrivals",
    "proxyd.exits.attached.attached",
    "proxyd.exits.attached.control",
    "proxyd.exits.dialling.dial",
    "proxyd.exits.dialling.evidence",
    "proxyd.exits.dialling.target",
    "proxyd.exits.dialling.watch",
    "proxyd.exits.choosing.bindings",
    "proxyd.exits.choosing.bounds",
    "proxyd.exits.choosing.directory",
    "proxyd.exits.choosing.entries",
    "proxyd.exits.choosing.faults",
    "proxyd.exits.choosing.filing",
    "proxyd.exits.choosing.past_picks",
    "proxyd.exits.choosing.standing",
    "proxyd.exits.choosing.wish",
    "proxyd.exits.processes.line",
    "proxyd.exits.attached.heartbeats",
    "proxyd.exits.attached.load",
    "proxyd.exits.attached.location",
    "proxyd.exits.attached.pool",
    "proxyd.exits.attached.pulse",
    "proxyd.exits.attached.quick_frames",
    "proxyd.exits.attached.roster",
    "proxyd.exits.attached.terms",
    "proxyd.exits.attached.tls",
    "proxyd.exits.choosing.places",
    # admission, and budgets of bytes
    "proxyd.metering.address_proofs",
    "proxyd.metering.admission",
    "proxyd.metering.allowlist",
    "proxyd.metering.exit_share",
    "proxyd.metering.fence",
    "proxyd.metering.in_transit",
    "proxyd.metering.lease_slices",
    "proxyd.metering.meter",
    "proxyd.metering.pace",
    "proxyd.metering.session",
    "proxyd.metering.sessions",
    "proxyd.metering.single_flight",
    "proxyd.metering.tallies",
)
