"""Building the daemon from settings: the one place that knows every class.

What a part needs of the settings is made in `slices`; when it runs is said in `daemon`.
"""

import asyncio
import gc
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from api.app import routes
from api.assistant.assistant import AssistantRoutes
from api.console import Console
from api.ops.metrics import Exposition
from api.reverse.server import AppServer
from api.routing.cookies import Cookies
from api.server import HttpServer
from config.settings import Settings
from market.accounts.passwords import Passwords
from market.accounts.tokens import Tokens
from market.assistant.asking import Asking, model_slots
from market.assistant.builtin import Offer, Responder
from market.assistant.chat import Chat
from market.assistant.goodness import Goodness
from market.bandwidth.leases import Leases
from market.base.ids import Identifiers
from market.base.sealing import Sealing
from market.base.throttle import Throttle
from market.events.context import Context
from market.events.idempotency import Seal
from market.exits.consents import Door
from market.market import Keys, Market
from market.money.money import micro
from market.photos.decoding import Photos
from proxyctl.protocol.policy import Policy
from proxyd import __version__, slices
from proxyd.app_port import AppPort, JobStreams
from proxyd.compiled import finder
from proxyd.counters import ExitCounters
from proxyd.daemon import Daemon, Helpers
from proxyd.egress.direct import DirectExit
from proxyd.egress.own import OwnAddresses
from proxyd.egress.resolve import DnsResolver, Resolver
from proxyd.exit_port import ExitPort
from proxyd.exits.attached import certificate
from proxyd.exits.attached.listener import ExitBase, ExitListener, PortServices
from proxyd.exits.attached.neighbours import Alone
from proxyd.exits.choosing.directory import Directory
from proxyd.exits.choosing.labels import Labels
from proxyd.exits.choosing.own_ports import OwnPorts
from proxyd.exits.dialling.dial import Exits, Ways
from proxyd.exits.dialling.errand import Ways as ErrandWays
from proxyd.exits.dialling.origin import OriginCheck
from proxyd.exits.dialling.tunnels import DeviceTunnels
from proxyd.exits.nodes.borrowing import Borrowing
from proxyd.exits.nodes.lending import Lending
from proxyd.exits.nodes.loans import Loans
from proxyd.exits.nodes.mesh import Cluster, Mesh
from proxyd.exits.nodes.remote import AnyExit
from proxyd.exits.nodes.stand_in import StandInServices
from proxyd.exits.processes.answering import ExitDesk
from proxyd.exits.processes.asking import AskedExits
from proxyd.exits.watching.canaries import Canaries
from proxyd.exits.watching.fetch import page_of
from proxyd.gateway import Gateway
from proxyd.limits import raise_descriptors
from proxyd.listeners import Listeners
from proxyd.live_uses import LiveSessions
from proxyd.loop import clock
from proxyd.loop.reactor import Reactor
from proxyd.metering.lease_slices import Fence
from proxyd.metering.meter import Meter, cluster_meter, solo_meter
from proxyd.metering.node import Node
from proxyd.ops.access_log import AccessLog
from proxyd.ops.listening import CannotListenError, bound_port, exits_context
from proxyd.ops.metrics import Metrics, Sources
from proxyd.ops.role import Role
from proxyd.ops.signing_key import signing_key
from proxyd.ops.timed_store import TimedStore
from proxyd.outbound.mailer import LogTransport, Mailer, Transport
from proxyd.outbound.webhooks import WebhookSender
from proxyd.readiness import Readiness
from proxyd.services import TAKE_BACK_CHECK_SECONDS, Services
from proxyd.tasks import REAP_CHECK_SECONDS
from proxyd.unmetered import UnmeteredRelays
from proxyd.wire.links import link_key
from storage.blobs.base import Blobs
from storage.blobs.local import LocalBlobs
from storage.blobs.s3 import Signer
from storage.engines.open import load, open_store
from storage.engines.place import is_sqlite
from storage.engines.store import Store

if TYPE_CHECKING:
    from proxyd.exits.choosing.geography import Geography
    from proxyd.outbound.chat_model import OpenAiModel

HOUR_SECONDS = 3_600
MINUTE_SECONDS = 60

# What is otherwise imported when it is used first, if ever.
USED_LATER = (
    "cryptography.fernet",
    "cryptography.hazmat.primitives.kdf.hkdf",
    "jwt",
    "market.photos.picture",
    "prometheus_client.exposition",
)


def import_the_rest(settings: Settings) -> None:
    """Import what these settings call for and one process imports when it needs it.

    So processes that are forked afterwards, at any time, run the same code. None of them looks for
    garbage in it: a collection writes to each object that it looks at, and a page that a process
    has written to is no longer shared. Of four processes' 91 MB that saves 5.
    """
    load(settings.storage.url)
    names = list(USED_LATER)
    if settings.mail.host:
        names.append("proxyd.outbound.smtp")
    if settings.assistant.model or settings.assistant.vision_model:
        names.append("proxyd.outbound.chat_model")
    for name in names:
        import_module(name)
    gc.collect()
    gc.freeze()


async def import_for_tokens(tokens: Tokens) -> None:
    """Import what tokens need in a process that is alone and serves: its loop goes on meanwhile."""
    await asyncio.to_thread(tokens.load)
    gc.freeze()  # as what was imported before (`commands`); of clients there is little so early


async def build(
    settings: Settings, listeners: Listeners | None = None, role: Role | None = None
) -> Daemon:
    """Bind, open the store, and build the daemon; whatever fails leaves nothing open.

    Args:
        settings: what the operator wants.
        listeners: the sockets to serve on, which are owned from here on; bound here if None.
        role: which of several processes this is; None where there is one.

    Raises:
        CannotListenError, CannotOpenError, SigningKeyError, CannotRecordError, SettingsError: why,
            in its message.
    """
    if listeners is None:
        listeners = Listeners.open(settings, {})
    storage = settings.storage
    try:
        store = await open_store(
            storage.url,
            pool_size=storage.pool_size,
            is_shared=role is not None,
            pooler=storage.pooler,
            direct_url=storage.direct_url,
        )
    except BaseException:
        listeners.close()
        raise
    access_log = geography = None
    try:
        key = signing_key(settings)
        if listeners.exits is not None:
            geography = await _geography(settings)
        access_log = _access_log(settings, key, role)
        daemon = _daemon(settings, listeners, store, key, access_log, role, geography)
        await store.claim(lambda: daemon.tasks.stop_daemon("the claim on the database is lost"))
    except BaseException:
        if access_log is not None:
            access_log.close()
        if geography is not None:
            geography.close()
        listeners.close()
        await store.close()
        raise
    return daemon


def _daemon(
    settings: Settings,
    listeners: Listeners,
    store: Store,
    key: bytes,
    access_log: AccessLog | None,
    role: Role | None,
    geography: "Geography | None",
) -> Daemon:
    """Return the daemon: leases, then the meter that spends them, then all that sells and serves.

    Args:
        settings: what the operator wants.
        listeners: the sockets to serve on.
        store: an open store.
        key: what session tokens are signed with, and other keys are derived from.
        access_log: takes records of proxied connections, if they are wanted.
        role: which of several processes this is; None where there is one.
        geography: says where exits are; None where they cannot attach.
    """
    store = timed = TimedStore(store)
    context = Context(store, Identifiers(clock.milliseconds), clock.seconds)
    leases = Leases(context.set_aside())
    has_services = role is None or role.has_services
    meter, node = _metering(settings, context, leases, may_sweep=has_services)
    context.events.is_shared = node is not None
    egress, own_addresses = settings.egress, OwnAddresses()
    resolver = DnsResolver(egress.nameservers, lookup_seconds=egress.lookup_seconds)
    policy = slices.policy(settings, own_addresses)
    limits = slices.limits(settings, raise_descriptors(), is_first=has_services)
    reactor = Reactor(asyncio.get_running_loop(), limits.pipes)
    exits, own_ports, directory = None, None, Directory[AnyExit]()
    ways: Ways | None = None
    if listeners.exits is not None:
        own_ports = _own_ports(settings, listeners, own_addresses, resolver)
        of_exits = slices.policy(settings, is_closed=own_ports.has)
        ways = exits = Exits(
            reactor,
            directory,
            resolver,
            of_exits,
            limits.dial_seconds,
            ExitCounters(),
            encrypts_all=settings.exits.encrypt == "all",
        )
        meter.sessions.forgotten = directory.forget
    elif role is not None and role.exits_address:
        ways = AskedExits(reactor, role.exits_address, limits.dial_seconds)
    gateway = Gateway(
        reactor,
        meter,
        DirectExit(reactor, resolver, policy, limits.dial_seconds, limits.racers),
        resolver,
        policy,
        limits,
        slices.public_address(settings),
        access_log.put if access_log is not None else None,
        ways,
    )
    metrics = Metrics(Sources(gateway, meter, timed, access_log, __version__, finder.way()), role)
    services = exit_port = None
    if has_services:
        services = _services(
            settings,
            listeners,
            key,
            context,
            leases,
            meter,
            metrics,
            Readiness(gateway, store, node),
            (resolver, policy),
        )
    if services is not None and node is not None:
        node.tell(services.market.waking)
        node.tell(services.market.logs.readers)
        node.tell(context.events)
    if services is not None and exits is not None and geography is not None:
        mesh = None
        if node is not None and not is_sqlite(settings.storage.url):
            mesh = _mesh(settings, context.store, leases, key, directory, reactor)
        exit_port = _exit_port(
            settings,
            listeners,
            exits,
            directory,
            services.market,
            geography,
            mesh,
            own_ports,
            gateway,
        )
        exit_port.own_ports = own_ports
        if role is not None and role.exits_desk is not None:
            most = slices.exit_limits(settings, raise_descriptors()).asks
            exit_port.desk = ExitDesk(exits, exit_port.listener, role.exits_desk, most)
        if mesh is not None:
            exit_port.labels = exits.labels = mesh.labels = Labels(
                reactor.loop,
                context.store,
                directory,
                is_alone=lambda: mesh.is_alone,
                tell_moved=mesh.tell_moved,
                seconds=clock.seconds,
            )
        metrics.count_exits(exit_port.listener)
        metrics.count_tunnels(exit_port.tunnels)
        if services.app_port is not None:
            services.app_port.streams.tunnels = exit_port.tunnels
    return Daemon(
        settings,
        listeners,
        store=store,
        leases=leases,
        meter=meter,
        node=node,
        gateway=gateway,
        helpers=Helpers(resolver, own_addresses, metrics, access_log),
        events=context.events,
        services=services,
        role=role,
        exit_port=exit_port,
    )


def _exit_port(
    settings: Settings,
    listeners: Listeners,
    exits: Exits,
    directory: Directory[AnyExit],
    market: Market,
    geography: "Geography",
    mesh: Mesh | None,
    own_ports: OwnPorts | None,
    gateway: Gateway,
) -> ExitPort:
    """Return where devices attach, known to the marketplace and knowing it.

    Raises:
        CannotListenError: the certificate cannot be used.
    """
    assert listeners.exits is not None  # noqa: S101 - nobody gets here without
    cert, key = _exits_certificate(settings)
    context = exits_context(cert, key)
    limits = slices.exit_limits(settings, raise_descriptors())
    base = ExitBase(
        PortServices(
            exits.reactor,
            market.exits,
            directory,
            geography.place,
            exits.counters,
            clock.seconds,
            mesh if mesh is not None else Alone(clock.seconds),
            own_ports,
            exits.encrypts_all,
        ),
        limits,
    )
    directory.standby_changed = base.offers.standby_changed
    try:
        known_by = certificate.fingerprint(Path(cert))
    except ValueError as error:
        raise CannotListenError(str(error)) from error
    port = slices.exits_port(settings, bound_port(listeners.exits))
    door = Door(slices.exits_host(settings), port, known_by)
    # The house itself may dial its own port through exits: older agents make their calls so.
    policy = slices.policy(settings)
    ways = ErrandWays(exits.reactor, exits.resolver, policy, exits.encrypts_all)
    canaries = Canaries(
        ways,
        [page_of(url) for url in settings.exits.canaries],
        OriginCheck(ways, base.origins, lambda: (door.host, door.port)),
        market.exit_canaries,
        base.verdicts,
        exits.counters,
    )
    # Workers' streams go another way than exits' connections, and share the port alone.
    tunnels = DeviceTunnels(exits.reactor, market.devices, limits.streams, limits.heartbeat_seconds)
    loans = _loans(exits, base, gateway, door, mesh)
    listener = ExitListener(base, context, loans, canaries, tunnels)
    exit_port = ExitPort(
        listener, listeners.exits, door, context, geography, canaries, tunnels, mesh
    )
    if settings.exits.next_tls_cert:
        exit_port.announce_certificate(settings.exits.next_tls_cert)
    market.exits.attached = exit_port
    market.exits.watch(exit_port.recheck)
    return exit_port


def _own_ports(
    settings: Settings, listeners: Listeners, is_here: OwnAddresses, resolver: Resolver
) -> OwnPorts:
    """Return what no buyer reaches through an exit."""
    assert listeners.exits is not None  # noqa: S101 - nobody gets here without
    bound, proxy = bound_port(listeners.exits), settings.proxy
    ports = (
        bound,
        slices.exits_port(settings, bound),
        bound_port(listeners.proxy),
        proxy.public_port,
        *listeners.passwordless_ports,
        *proxy.public_passwordless_ports,
    )
    return OwnPorts(is_here, resolver, ports, (proxy.public_host,), settings.egress.deny)


def _loans(exits: Exits, base: ExitBase, gateway: Gateway, door: Door, mesh: Mesh | None) -> Loans:
    """Return what borrows exits of other nodes and lends those of this one."""
    reactor, limits = exits.reactor, base.limits
    join = UnmeteredRelays(reactor, gateway.closer)
    loans = Loans(
        Borrowing(
            reactor,
            base.budget,
            exits.counters,
            lambda: (door.host, door.port),
            base.detached.keep,
            limits.heartbeat_seconds,
        ),
        Lending(
            base.roster,
            StandInServices(reactor, join, limits.stand_ins),
            mesh.reached_at if mesh is not None else lambda _: None,
        ),
    )
    exits.borrower = loans
    if mesh is not None:
        mesh.lender = loans
    return loans


def _mesh(
    settings: Settings,
    store: Store,
    leases: Leases,
    key: bytes,
    directory: Directory[AnyExit],
    reactor: Reactor,
) -> Mesh:
    """Return what knows the exits of other nodes."""
    cluster = settings.cluster
    this_node = Cluster(
        store, lambda: leases.node_id, link_key(key), cluster.exits_host, cluster.exits_port
    )
    return Mesh(reactor.loop, this_node, directory, clock.milliseconds)


def _exits_certificate(settings: Settings) -> tuple[str, str]:
    """Return the files of the certificate and the key: the operator's, or what is made here.

    Raises:
        CannotListenError: none can be made.
    """
    exits = settings.exits
    if exits.tls_cert:
        return exits.tls_cert, exits.tls_key
    folder = Path(settings.storage.url.removeprefix("sqlite:///")).parent
    try:
        made = str(certificate.own_certificate(folder, clock.seconds()))
    except OSError as error:
        message = f"cannot make a certificate for exits in {folder}: {error.strerror}"
        raise CannotListenError(message) from error
    return made, made


async def _geography(settings: Settings) -> "Geography":
    """Return what says where exits are; reading it takes a second.

    Raises:
        SettingsError: a file of it cannot be used.
    """
    # Here, so that a daemon without exits does not wait for it.
    from proxyd.exits.choosing.geography import Sources, open_geography  # noqa: PLC0415

    geo = settings.geo
    return await asyncio.to_thread(
        open_geography, Sources(geo.country, geo.city, geo.asn, geo.known)
    )


def _services(
    settings: Settings,
    listeners: Listeners,
    key: bytes,
    context: Context,
    leases: Leases,
    meter: Meter,
    metrics: Metrics,
    readiness: Readiness,
    ways_of_webhooks: tuple[Resolver, Policy],
) -> Services:
    """Return the marketplace and its API, over what the proxy is made of."""
    assert listeners.api is not None  # noqa: S101 - only a process with the API gets here
    observed_time = clock.ObservedTime(clock.boottime, 2 * TAKE_BACK_CHECK_SECONDS)
    app_url = slices.app_url(settings, bound_port(listeners.api))
    terms = slices.terms(settings, bound_port(listeners.proxy), listeners.passwordless_ports)
    # On SQLite there is one marketplace, in however many processes its sessions are served.
    is_shared = not is_sqlite(settings.storage.url)
    blobs = _blobs(settings, is_shared=is_shared)
    market = Market(
        context,
        slices.rules(settings, terms, app_url, descriptors=raise_descriptors()),
        _keys(settings, key),
        leases=leases,
        traffic=meter,
        observed_seconds=observed_time.seconds,
        blobs=blobs,
        live_uses=LiveSessions(meter),
        is_shared=is_shared,
    )
    metrics.count_emails(lambda: market.emails.waiting)
    metrics.count_webhooks(market.webhooks)
    metrics.count_artifacts(market.artifacts.traffic)
    metrics.count_attempts(lambda: market.jobs.ends)
    metrics.count_dispatch(market.dispatch)
    metrics.count_rollouts(market.rollouts)
    metrics.count_logs(market.logs)
    model, photos = _model(settings), Photos(slices.photo_limits(settings))
    assistant = _assistant(settings, market, model, photos)
    app_port = _app_port(settings, listeners, market)
    if app_port is not None:
        metrics.count_apps(app_port.server)
    door = None if app_port is None else app_port.server
    return Services(
        market,
        _http(settings, key, market, assistant, readiness, metrics, app_url, door),
        mailer=Mailer(market.emails, _transport(settings), is_alone=not is_shared),
        model=model,
        photos=photos,
        blobs=blobs,
        observed_time=observed_time,
        webhooks=WebhookSender(market.webhooks, *ways_of_webhooks, agent=f"proxyd/{__version__}"),
        app_port=app_port,
    )


def _app_port(settings: Settings, listeners: Listeners, market: Market) -> AppPort | None:
    """Return where apps are reached; None where they are not."""
    if listeners.apps is None:
        return None
    streams, apps = JobStreams(), market.apps
    terms = slices.app_terms(settings, bound_port(listeners.apps), raise_descriptors())
    server = AppServer(apps.find, apps.key_hashes, streams, terms, settings.api.trusted_proxies)
    apps.on_change = server.forget
    return AppPort(server, streams, listeners.apps, listeners.apps_tls)


def _blobs(settings: Settings, *, is_shared: bool) -> Blobs:
    """Return what keeps the files of jobs: an S3 store if one is set, or a folder."""
    bucket = slices.bucket(settings)
    if bucket is None:
        return LocalBlobs(
            slices.work_folder(settings),
            reserve_bytes=settings.work.disk_reserve_bytes,
            is_shared=is_shared,
        )
    # Here, so that a daemon without a store does not wait for a client of HTTP.
    from proxyd.outbound.s3 import S3Blobs  # noqa: PLC0415

    return S3Blobs(Signer(bucket, clock.seconds))


def _metering(
    settings: Settings, context: Context, leases: Leases, *, may_sweep: bool
) -> tuple[Meter, Node | None]:
    """Return what counts bytes, and this process among others where there may be others.

    Args:
        settings: what the operator wants.
        context: the store, identifiers and the time.
        leases: grant bytes, and take the counts.
        may_sweep: whether this process has what only one on a database should do.
    """
    limits, timeout = settings.limits, settings.cluster.node_timeout_seconds
    link = context.store.link(timeout)
    if link is None:
        meter = solo_meter(
            leases,
            context.now,
            connections_per_session=limits.connections_per_session,
            bytes_per_second=limits.session_bytes_per_second,
        )
        return meter, None
    fence = Fence(clock.boottime)
    meter, writer = cluster_meter(
        leases,
        context.now,
        fence,
        connections_per_session=limits.connections_per_session,
        bytes_per_second=limits.session_bytes_per_second,
    )
    node = Node(
        link,
        leases,
        writer,
        fence,
        context.identifiers,
        clock.boottime,
        clock.ObservedTime(clock.boottime, 2 * REAP_CHECK_SECONDS),
        timeout_seconds=timeout,
        may_sweep=may_sweep,
    )
    return meter, node


def _keys(settings: Settings, key: bytes) -> Keys:
    auth = settings.auth
    return Keys(
        Passwords(time_cost=auth.argon2_time_cost, memory_kib=auth.argon2_memory_kib),
        Tokens(key, lifetime_seconds=auth.token_hours * HOUR_SECONDS),
        Sealing(key, b"outbox"),
        Sealing(key, b"job secrets"),
        Sealing(key, b"app keys"),
        Sealing(key, b"webhook secrets"),
    )


def _http(
    settings: Settings,
    key: bytes,
    market: Market,
    assistant: AssistantRoutes,
    readiness: Readiness,
    metrics: Metrics,
    app_url: str,
    door: AppServer | None,
) -> HttpServer:
    """Return the API: its routes, and how it serves them."""
    api, context = settings.api, market.context
    cookies = Cookies(
        is_secure=api.base_url.startswith("https://") or bool(api.tls_cert),
        lifetime_seconds=settings.auth.token_hours * HOUR_SECONDS,
    )
    return HttpServer(
        routes(
            market,
            assistant,
            why_not_ready=readiness.why_not,
            app_url=app_url,
            cookies=cookies,
            has_mail=bool(settings.mail.host),
            door=door,
        ),
        authenticate=market.accounts.authenticate,
        authenticate_key=market.keys.authenticate,
        authenticate_worker=market.devices.authenticate,
        is_current=market.accounts.is_current,
        body_max_bytes=api.body_max_bytes,
        version=__version__,
        base_url=api.base_url,
        seal=Seal(key),
        now=context.now,
        limits=slices.api_limits(settings, raise_descriptors()),
        trusted_proxies=api.trusted_proxies,
        cookies=cookies,
        console=Console() if api.console else None,
        exposition=Exposition(metrics.render, api.metrics_allow),
    )


def _assistant(
    settings: Settings, market: Market, client: "OpenAiModel | None", photos: Photos
) -> AssistantRoutes:
    """Return the routes of the assistant, with a model where one is configured."""
    assistant, context = settings.assistant, market.context
    slots = model_slots(assistant.concurrency, assistant.concurrency_per_caller)

    def asking(model: str) -> Asking | None:
        if not model or client is None:
            return None
        return Asking(client, slots, seconds=assistant.timeout_seconds)

    responder = Responder(
        market.bandwidth,
        market.jobs,
        market.devices,
        market.exits,
        market.referrals,
        Offer(micro(settings.market.price_per_gb_default_usd)),
    )
    goodness = Goodness(
        context,
        slices.reward_terms(settings),
        asking(assistant.vision_model),
        assistant.vision_model,
    )
    return AssistantRoutes(
        Chat(responder, asking(assistant.model), assistant.model),
        photos,
        goodness,
        Throttle(assistant.requests_per_minute, MINUTE_SECONDS, context.now),
        photo_max_bytes=assistant.photo_max_bytes,
    )


def _model(settings: Settings) -> "OpenAiModel | None":
    """Return the client of the language model; None where no model is configured."""
    assistant = settings.assistant
    if not assistant.model and not assistant.vision_model:
        return None
    # Here, so that a daemon without a model does not wait for an HTTP client.
    from proxyd.outbound.chat_model import OpenAiModel  # noqa: PLC0415

    return OpenAiModel(
        assistant.base_url,
        assistant.api_key,
        max_tokens=assistant.reply_max_tokens,
        connections=assistant.concurrency,
    )


def _transport(settings: Settings) -> Transport:
    mail = settings.mail
    if not mail.host:
        return LogTransport()
    # Here, so that a daemon without a mail server does not wait for SMTP.
    from proxyd.outbound.smtp import SmtpServer, SmtpTransport  # noqa: PLC0415

    return SmtpTransport(
        SmtpServer(mail.host, mail.port, mail.username, mail.password, mail.tls, mail.sender)
    )


def _access_log(settings: Settings, key: bytes, role: Role | None) -> AccessLog | None:
    access_log = settings.access_log
    if not access_log.folder:
        return None
    return AccessLog(
        Path(access_log.folder),
        target=access_log.target,
        client=access_log.client,
        keep_days=access_log.keep_days,
        key=key,
        now=clock.seconds,
        process=role.index if role is not None else None,
    )
