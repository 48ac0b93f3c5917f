"""The demonstration: a funded account and a session, to try the program with."""

import os
import shlex
import sys
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
from market.site.gate import Papers
from market.staff.base.roles import Rule
from market.staff.money import deposits
from proxyd.cli import demo_files
from proxyd.cli.demo_files import DemoFiles, beside, database_file
from proxyd.loop import clock
from proxyd.ops.processes.listening import PORT_MAX, bound_port, format_address
from proxyd.wiring.daemon import Daemon
from storage.engines.place import is_sqlite

EMAIL = "demo@example.com"
USERNAME = "demo"
PASSWORD = "demo-password"  # noqa: S105 - public, and usable on loopback only
FUNDS = micro(Decimal(100))
SESSION_BYTES = 1 * GB
LOOPBACK_HOST = "127.0.0.1"
LOOPBACK = ("127.0.0.0/8", "::1/128")
PAGE_MAX_SESSIONS = 1000
# Whose device carries connections: a buyer never leaves through a device of the same account.
OWNER_EMAIL = "exit@example.com"
OWNER_USERNAME = "exit-owner"
# Ends of files beside the database, which `make exit` and `make worker` read.
EXIT_SUFFIX = "-exit.token"
WORKER_SUFFIX = "-worker.token"
USUAL_NAME = Path(StorageSettings().url).stem
# A code of no country (ISO 3166 reserves it for users).
NOWHERE = "xx"

TEXT = """
proxyd runs. Stop it with Ctrl-C. The API is at {api}/docs

  {api}/console    login {email} / {password}

In another terminal, fetch a page through the proxy, with a session of 1 GB that is yours:

  curl -x socks5h://{username}:{secret}@{proxy} {api}/

See the bytes that it used, and the price of a GB:

  export TOKEN=$(cat {token_file})
  curl -H "Authorization: Bearer $TOKEN" {api}/api/bandwidth/sessions

More examples, in this folder:  {more}

Each start ends the earlier sessions, and fills the account up to 100 USD and 100 credits.
"""

HTTP = """The proxy's port also speaks HTTP, for programs that send no password by SOCKS5:

  curl -x http://{username}:{secret}@{proxy} {api}/

Set the token once in each terminal. The examples below use it:

  export TOKEN=$(cat {token_file})

"""

EXITS = """Let a connection leave through a device of another owner. Run this in another terminal:

  {make_exit}

Then write a country behind the user name. `xx` is this machine:

  curl -x socks5h://{username}-country-xx:{secret}@{proxy} {api}/

The device belongs to {owner}, whose password is the same as yours. Log in as its owner:

  curl -sS -H 'Content-Type: application/json' -d '{login}' {api}/auth/login

With the token of that answer, /api/exits/me shows the bytes that the device has carried, and the
money that it has earned. The money of open sessions is added each hour, the rest at their end.

"""

WORKER = """Let a device of another owner run a job in a sandbox. Run this in another terminal:

  {make_worker}

The device earns for {owner}, whose password is the same as yours. Post a script, and
follow its output. The first line is the answer to the post, with its warnings or a refusal:

  job=$(curl -sS -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \\
    -d '{job}' \\
    {api}/api/jobs | tee /dev/stderr | grep -o '"job_id":"[^"]*') &&
    job=${{job##*\\"}} && curl -sSN -H "Authorization: Bearer $TOKEN" \\
    -H 'Accept: text/event-stream' {api}/api/jobs/$job/log

"""
APPS = """Post a job that serves a page:

  job=$(curl -sS -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \\
    -d '{page}' \\
    {api}/api/jobs | tee /dev/stderr | grep -o '"job_id":"[^"]*') &&
    job=${{job##*\\"}} && curl -sS -H "Authorization: Bearer $TOKEN" \\
    {api}/api/jobs/$job/app

When the device has the job, open the `url` of the second answer. The page stays for an hour, or
until you cancel its job:

  curl -X POST -H "Authorization: Bearer $TOKEN" {api}/api/jobs/$job/cancel

"""
SECOND = """Run a second demonstration in this folder beside this one, on other ports:

  {second}

"""
PORTS = """The ports of this demonstration: {ports}.
"""
# The price is above the minimum of the device, and covers an hour at most.
JOB = r"""{"title": "count", "job_type": "script", "price_credit": 1, "duration_hrs": 1,
    "payload": {"script":
    "import time\nfor n in range(5):\n    print(n, flush=True)\n    time.sleep(1)"}}"""

PAGE = r"""{"title": "page", "job_type": "script", "price_credit": 1, "duration_hrs": 1,
    "resources": {"cores": 0.2, "ram_gb": 0.2, "disk_gb": 0.2},
    "payload": {"ports": [{"name": "web", "port": 8000}], "interpreter": "bash",
    "script": "exec python3 -m http.server --bind 127.0.0.1 8000"}}"""
# Browsers resolve every name below it to this machine, so each app has its own host.
APPS_DOMAIN = "localhost"


def settings_for(settings: Settings) -> Settings:
    """Return the settings, changed to allow loopback targets and exits on loopback.

    Raises:
        SettingsError: other machines could reach an account with a public password.
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
    """Return the port of apps beside a moved API: the port after the API's, or the next one left.

    It is the same at each start, so that users can keep links to apps.
    """
    api, proxy, chosen = settings.api.port, settings.proxy.port, settings.apps.port
    if not api or chosen != AppSettings().port:
        return 0 if chosen == AppSettings().port else chosen
    others = {proxy, proxy + 1, settings.exits.port, *settings.proxy.passwordless_ports}
    return next((each for each in range(api + 1, PORT_MAX + 1) if each not in others), 0)


def _with_exits(settings: Settings) -> Settings:
    """Return the settings with exits and apps on loopback, if the database is SQLite.

    A demonstration on moved ports runs beside another program, perhaps a demonstration.
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


async def prepare(daemon: Daemon, files: DemoFiles) -> str:
    """Fund the account, replace its sessions with one, and return the text for the terminal.

    The token and more examples are written to the demonstration's files.
    """
    token, user_id = await _account(daemon, EMAIL, USERNAME)
    old = await daemon.market.bandwidth.page(
        user_id, status=SessionStatus.ACTIVE, before="", limit=PAGE_MAX_SESSIONS
    )
    for session in old:
        await daemon.market.bandwidth.end(user_id, session.id)
    await _fund(daemon, user_id)  # after the ends, which release money
    bought = await _buy(daemon, user_id)
    if daemon.exit_port is not None:
        await _offer_exit(daemon)
    if is_sqlite(daemon.settings.storage.url):
        _, owner = await _account(daemon, OWNER_EMAIL, OWNER_USERNAME)
        await _device(daemon, owner, WORKER_SUFFIX)
    files.write(token, _examples(daemon, files, bought))
    return _text(daemon, files, bought)


async def _buy(daemon: Daemon, user_id: str) -> Purchase:
    """Buy the session; the refusal of a suspended account names the command that resumes it."""
    try:
        return await daemon.market.bandwidth.buy(
            user_id, quota_bytes=SESSION_BYTES, price_per_gb=None
        )
    except MarketError as error:
        if error.code is not Code.ACCOUNT_SUSPENDED:
            raise
        resume = _command(daemon.settings, f"user resume {EMAIL} --reason TEXT")
        raise MarketError(
            error.code, f"The demonstration's account {EMAIL} is suspended; resume it: {resume}"
        ) from None


async def _offer_exit(daemon: Daemon) -> None:
    """Consent that a device of another owner is an exit, and write its token for `make exit`."""
    market = daemon.market
    _, owner = await _account(daemon, OWNER_EMAIL, OWNER_USERNAME)
    device_id = await _device(daemon, owner, EXIT_SUFFIX)
    # With the limits of this start, such as the API's port.
    await market.exits.consent(owner, device_id, market.exits.terms_hash, market.exits.terms.limits)


async def _device(daemon: Daemon, owner: str, suffix: str) -> str:
    """Return a device of a user; the token of a new one is written beside the database."""
    devices = daemon.market.devices
    path = beside(daemon.settings, suffix)
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


async def _account(daemon: Daemon, email: str, username: str) -> tuple[str, str]:
    """Log in as a user of the demonstration; the first start creates it without an e-mail.

    The user accepts the published texts: the operator who tries `site publish` can start again.
    """
    versions = await daemon.market.texts.versions()
    papers = Papers(accepted={each.kind: each.version for each in versions if each.is_valid})
    try:
        login = await daemon.market.accounts.login(email=email, password=PASSWORD, papers=papers)
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
        login = await daemon.market.accounts.login(email=email, password=PASSWORD, papers=papers)
    return login.token, login.profile.user_id


async def _fund(daemon: Daemon, user_id: str) -> None:
    """Fill both wallets up to the same sum; a rule of the daemon pays in, and no person."""
    _, has = await daemon.store.read(accounts.spendable, user_id)
    missing = {currency: max(0, FUNDS - has[currency]) for currency in Currency}
    if any(missing.values()):
        context = daemon.market.context
        author, reference = Rule("demonstration"), context.identifiers.new()
        await deposits.deposit(context, author, user_id, {}, amounts=missing, reference=reference)


def _text(daemon: Daemon, files: DemoFiles, bought: Purchase) -> str:
    """Return the text that the demonstration prints: one page of a terminal."""
    return TEXT.format(
        email=EMAIL,
        password=PASSWORD,
        more=_command(daemon.settings, "demo --examples"),
        **_values(daemon, files, bought),
    )


def _examples(daemon: Daemon, files: DemoFiles, bought: Purchase) -> str:
    """Return the text of `proxyd demo --examples`."""
    values = _values(daemon, files, bought)
    api, settings = values["api"], daemon.settings
    text = HTTP.format(**values)
    if daemon.exit_port is not None:
        login = msgspec.json.encode({"email": OWNER_EMAIL, "password": PASSWORD}).decode()
        make_exit = _make("exit", settings, api)
        text += EXITS.format(make_exit=make_exit, owner=OWNER_EMAIL, login=login, **values)
    if is_sqlite(settings.storage.url):
        make_worker = _make("worker", settings, api)
        text += WORKER.format(make_worker=make_worker, owner=OWNER_EMAIL, job=JOB, api=api)
        text += APPS.format(page=PAGE, api=api)
    listeners = daemon.listeners
    ports = [("API", listeners.api), ("pages of jobs", listeners.apps), ("proxy", listeners.proxy)]
    ports += [("proxy without a password", each) for each in listeners.passwordless]
    ports.append(("devices", listeners.exits))
    if _is_usual(settings):
        text += SECOND.format(second=demo_files.SECOND)
    return text + PORTS.format(
        ports=", ".join(f"{name} {bound_port(each)}" for name, each in ports if each is not None)
    )


def _is_usual(settings: Settings) -> bool:
    """Return whether a second demonstration can run beside this one with the values of `SECOND`."""
    is_moved = (settings.api.port, settings.proxy.port) != (
        ApiSettings().port,
        ProxySettings().port,
    )
    return not is_moved and settings.storage.url == StorageSettings().url


def _values(daemon: Daemon, files: DemoFiles, bought: Purchase) -> dict[str, str]:
    """Return the values that the texts share: addresses, the session and the token's file."""
    api = daemon.settings.api
    assert daemon.listeners.api is not None  # noqa: S101 - it is prepared where the API is
    scheme = "https" if daemon.listeners.tls else "http"
    return {
        "api": f"{scheme}://{format_address(api.host, bound_port(daemon.listeners.api))}",
        "proxy": format_address(bought.host, bought.port),
        "username": bought.username,
        "secret": bought.password,
        "token_file": shlex.quote(str(files.token_path)),
    }


def _command(settings: Settings, words: str) -> str:
    """Return a command of proxyd for this demonstration, to be pasted in its folder."""
    program = Path(sys.executable).with_name("proxyd")
    if program.is_relative_to(Path.cwd()):
        program = program.relative_to(Path.cwd())
    command = f"{shlex.quote(str(program))} {words}"
    url = settings.storage.url
    if is_sqlite(url) and url != StorageSettings().url:
        return f"PROXYD_STORAGE__URL={shlex.quote(url)} {command}"
    return command


def _make(target: str, settings: Settings, url: str) -> str:
    """Return the command that runs a device for this demonstration."""
    words = [f"make {target}"]
    if settings.api.port != ApiSettings().port:
        words.append(f"API={url}")
    name = database_file(settings).stem
    if name != USUAL_NAME:
        words.append(f"DEMO={name}")
    return " ".join(words)
