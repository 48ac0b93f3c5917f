"""The demonstration: a funded account and a session, to try the program with."""

import os
from decimal import Decimal
from ipaddress import ip_address
from pathlib import Path

import msgspec

from config.load import SettingsError
from config.settings import (
    ApiSettings,
    AppSettings,
    ExitSettings,
    ProxySettings,
    Settings,
    StorageSettings,
)
from market.accounts import accounts
from market.bandwidth.sessions import Purchase
from market.base.errors import Code, MarketError
from market.base.states import SessionStatus
from market.money.money import GB, Currency, micro
from proxyd.daemon import Daemon
from proxyd.loop import clock
from proxyd.ops.listening import PORT_MAX, bound_port, format_address
from storage.engines.place import is_sqlite

EMAIL = "demo@example.com"
USERNAME = "demo"
PASSWORD = "demo-password"  # noqa: S105 - known to everybody, and good on loopback alone
FUNDS = micro(Decimal(100))
SESSION_BYTES = 1 * GB
LOOPBACK_HOST = "127.0.0.1"
LOOPBACK = ("127.0.0.0/8", "::1/128")
PAGE_MAX_SESSIONS = 1000
# Whose device carries connections: nobody leaves through one of their own.
OWNER_EMAIL = "exit@example.com"
OWNER_USERNAME = "exit-owner"
# Behind the name of the database, beside it: `make exit` and `make worker` read them.
EXIT_SUFFIX = "-exit.token"
WORKER_SUFFIX = "-worker.token"
USUAL_NAME = Path(StorageSettings().url).stem
# What no country has (ISO 3166 leaves it to its users).
NOWHERE = "xx"

TEXT = """
proxyd runs. Stop it with Ctrl-C.

  API      {api}
  docs     {api}/docs
  console  {api}/console
  login    {email} / {password}

Fetch a page through the proxy, with a session of 1 GB that was bought for you (any address on the
internet will do; this one works offline):

  curl -x socks5h://{username}:{secret}@{proxy} {api}/

The same port speaks HTTP, for browsers and other programs that send no password by SOCKS5:

  curl -x http://{username}:{secret}@{proxy} {api}/

For the lines below, say once in that terminal that it is you:

  export TOKEN={token}

See the bytes that they cost:

  curl -H "Authorization: Bearer $TOKEN" {api}/api/bandwidth/sessions

{exits}{worker}Each start fills the account up to 100 USD and 100 credits, and ends the sessions of
earlier demonstrations.
"""


EXITS = """Have a connection leave through a device of somebody else: run

  {make_exit}

in another terminal, and write a country behind the user name. `xx` is this machine:

  curl -x socks5h://{username}-country-xx:{secret}@{proxy} {api}/

The device belongs to {owner}, whose password is the same as yours: /api/exits/me says
to that login what the device has carried and earned.

"""


WORKER = """Have work done by a device of somebody else, walled in: run

  {make_worker}

in another terminal (it earns for {owner}, whose password is the same as yours). Where
your TOKEN is set, post a script and follow what it prints:

  job=$(curl -s -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \\
    -d '{job}' {api}/api/jobs | \\
    grep -o '"job_id":"[^"]*' | cut -d'"' -f4) && curl -sN -H "Authorization: Bearer $TOKEN" \\
    -H 'Accept: text/event-stream' "{api}/api/jobs/$job/log"

"""
APPS = """Have it show a page, and open the address that is printed in a browser as soon as the
device has the job:

  job=$(curl -s -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \\
    -d '{page}' {api}/api/jobs | \\
    grep -o '"job_id":"[^"]*' | cut -d'"' -f4) && curl -s -H "Authorization: Bearer $TOKEN" \\
    {api}/api/jobs/$job/app | grep -o 'http://[^"]*' | head -1

The page stays for an hour, or until you say:

  curl -X POST -H "Authorization: Bearer $TOKEN" {api}/api/jobs/$job/cancel

"""
# What is paid is more than what the device asks for, and lasts for an hour at most.
JOB = (
    '{"title":"count","job_type":"script","price_credit":1,"duration_hrs":1,"payload":{"script":'
    '"import time\\nfor n in range(5):\\n    print(n, flush=True)\\n    time.sleep(1)"}}'
)

PAGE = (
    '{"title":"page","job_type":"script","price_credit":1,"duration_hrs":1,"resources":{"cores":0.2,'
    '"ram_gb":0.2,"disk_gb":0.2},"payload":{"ports":[{"name":"web","port":8000}],'
    '"script":"import http.server as web\\n'
    'web.test(web.SimpleHTTPRequestHandler, port=8000, bind=\\"127.0.0.1\\")"}}'
)
# Browsers take every name below it for this machine, so that each app has a host of its own.
APPS_DOMAIN = "localhost"


def settings_for(settings: Settings) -> Settings:
    """Return the settings with loopback targets allowed, and exits on loopback.

    Raises:
        SettingsError: they would let other machines reach an account whose password is public.
    """
    problems = [
        f"{name}: a demonstration listens on loopback alone, not on {host}"
        for name, host in (
            ("api.host", settings.api.host),
            ("proxy.host", settings.proxy.host),
            ("exits.host", settings.exits.host),
            ("apps.host", settings.apps.host),
        )
        if host and not ip_address(host).is_loopback
    ]
    if problems:
        raise SettingsError(problems)
    egress = msgspec.structs.replace(settings.egress, allow=(*settings.egress.allow, *LOOPBACK))
    return _with_exits(msgspec.structs.replace(settings, egress=egress))


def _port_of_apps(settings: Settings) -> int:
    """Return the port of apps beside an API that was moved: the same at each start, if it can be.

    Links to apps are kept. It is the one behind the API's, as where nothing was moved.
    """
    api, proxy, chosen = settings.api.port, settings.proxy.port, settings.apps.port
    if not api or chosen != AppSettings().port:
        return 0 if chosen == AppSettings().port else chosen
    others = {proxy, proxy + 1, settings.exits.port, *settings.proxy.passwordless_ports}
    return next((each for each in range(api + 1, PORT_MAX + 1) if each not in others), 0)


def _with_exits(settings: Settings) -> Settings:
    """Return the settings with exits, where a daemon can have them without more ado.

    A demonstration whose ports were moved is beside another program, perhaps a demonstration.
    """
    api, proxy, exits, geo = settings.api, settings.proxy, settings.exits, settings.geo
    if not is_sqlite(settings.storage.url):
        return settings
    is_moved = (api.port, proxy.port) != (ApiSettings().port, ProxySettings().port)
    ports = (*exits.ports, *({api.port} - {0, *exits.ports}))
    exits = msgspec.structs.replace(
        exits,
        host=exits.host or LOOPBACK_HOST,
        port=0 if is_moved and exits.port == ExitSettings().port else exits.port,
        ports=ports,
    )
    apps = msgspec.structs.replace(
        settings.apps,
        host=settings.apps.host or LOOPBACK_HOST,
        port=_port_of_apps(settings) if is_moved else settings.apps.port,
        domain=settings.apps.domain or APPS_DOMAIN,
    )
    known = dict.fromkeys(LOOPBACK, NOWHERE) | geo.known
    return msgspec.structs.replace(
        settings, exits=exits, apps=apps, geo=msgspec.structs.replace(geo, known=known)
    )


async def prepare(daemon: Daemon) -> str:
    """Fund the account, buy a session in the place of older ones, and return how to use it."""
    token, user_id = await _account(daemon, EMAIL, USERNAME)
    await _fund(daemon)
    old = await daemon.market.bandwidth.page(
        user_id, status=SessionStatus.ACTIVE, before="", limit=PAGE_MAX_SESSIONS
    )
    for session in old:
        await daemon.market.bandwidth.end(user_id, session.id)
    bought = await daemon.market.bandwidth.buy(
        user_id, quota_bytes=SESSION_BYTES, price_per_gb=None
    )
    if daemon.exit_port is not None:
        await _offer_exit(daemon)
    if is_sqlite(daemon.settings.storage.url):
        _, owner = await _account(daemon, OWNER_EMAIL, OWNER_USERNAME)
        await _device(daemon, owner, WORKER_SUFFIX)
    return _text(daemon, token, bought)


async def _offer_exit(daemon: Daemon) -> None:
    """Agree that a device of somebody else is an exit, and write its token down for `make exit`."""
    market = daemon.market
    _, owner = await _account(daemon, OWNER_EMAIL, OWNER_USERNAME)
    device_id = await _device(daemon, owner, EXIT_SUFFIX)
    # With the limits of this start, of which the API's port is one.
    await market.exits.consent(owner, device_id, market.exits.terms_hash, market.exits.terms.limits)


async def _device(daemon: Daemon, owner: str, suffix: str) -> str:
    """Return a device of a user; where it is new, its token is written beside the database."""
    devices = daemon.market.devices
    database = _database(daemon.settings)
    path = database.with_name(database.stem + suffix)
    try:
        return (await devices.authenticate(path.read_text("ascii").strip())).id
    except (OSError, ValueError, MarketError):  # the first time, or another database
        made = await devices.create(
            owner, name="demonstration", device_type="mini_pc", min_price_usd=None
        )
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(file, "w", encoding="ascii") as opened:
        opened.write(made.token + "\n")
    return made.device_id


def _database(settings: Settings) -> Path:
    """Return where the database is; exits are offered where that is a file."""
    return Path(settings.storage.url.removeprefix("sqlite:///"))


async def _account(daemon: Daemon, email: str, username: str) -> tuple[str, str]:
    """Log in as a user of the demonstration, made at the first start without an e-mail to them."""
    try:
        login = await daemon.market.accounts.login(email=email, password=PASSWORD)
    except MarketError as error:
        if error.code is not Code.INVALID_CREDENTIALS:
            raise
        user = await accounts.prepared_user(
            daemon.market.passwords,
            user_id=daemon.market.context.identifiers.new(),
            username=username,
            email=email,
            password=PASSWORD,
            now=clock.seconds(),
        )
        await daemon.store.write(accounts.add_user, user)
        login = await daemon.market.accounts.login(email=email, password=PASSWORD)
    return login.token, login.profile.user_id


async def _fund(daemon: Daemon) -> None:
    """Bring both wallets up to the same sum at every start."""
    has = await daemon.store.read(accounts.spendable, EMAIL)
    for currency in Currency:
        if has[currency] < FUNDS:
            transfer = daemon.market.context.identifiers.new()
            await daemon.store.write(
                accounts.deposit,
                daemon.market.context,
                email=EMAIL,
                currency=currency,
                amount=FUNDS - has[currency],
                reference=transfer,
                transfer_id=transfer,
                now=clock.seconds(),
            )


def _text(daemon: Daemon, token: str, bought: Purchase) -> str:
    api = daemon.settings.api
    assert daemon.listeners.api is not None  # noqa: S101 - it is prepared where the API is
    scheme = "https" if daemon.listeners.tls else "http"
    url = f"{scheme}://{format_address(api.host, bound_port(daemon.listeners.api))}"
    used = {
        "api": url,
        "proxy": format_address(bought.host, bought.port),
        "username": bought.username,
        "secret": bought.password,
    }
    exits = worker = ""
    if daemon.exit_port is not None:
        make_exit = _make("exit", daemon.settings, url)
        exits = EXITS.format(make_exit=make_exit, owner=OWNER_EMAIL, **used)
    if is_sqlite(daemon.settings.storage.url):
        make_worker = _make("worker", daemon.settings, url)
        worker = WORKER.format(make_worker=make_worker, owner=OWNER_EMAIL, job=JOB, api=url)
        worker += APPS.format(page=PAGE, api=url)
    return TEXT.format(
        email=EMAIL, password=PASSWORD, token=token, exits=exits, worker=worker, **used
    )


def _make(target: str, settings: Settings, url: str) -> str:
    """Return the command that runs a device for this demonstration."""
    words = [f"make {target}"]
    if settings.api.port != ApiSettings().port:
        words.append(f"API={url}")
    name = _database(settings).stem
    if name != USUAL_NAME:
        words.append(f"DEMO={name}")
    return " ".join(words)
