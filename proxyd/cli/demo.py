"""The demonstration: a funded account and a session, to try the program with."""

from decimal import Decimal
from ipaddress import ip_address

import msgspec

from config.load import SettingsError
from config.settings import Settings
from market import accounts
from market.bandwidth import Purchase
from market.errors import Code, MarketError
from market.money import GB, Currency, micro
from market.states import SessionStatus
from proxyd.daemon import Daemon
from proxyd.loop import clock
from proxyd.ops.listening import bound_port, format_address

EMAIL = "demo@example.com"
USERNAME = "demo"
PASSWORD = "demo-password"  # noqa: S105 - known to everybody, and good on loopback alone
FUNDS = micro(Decimal(100))
SESSION_BYTES = 1 * GB
LOOPBACK = ("127.0.0.0/8", "::1/128")
PAGE_MAX_SESSIONS = 1000

TEXT = """
proxyd runs. Stop it with Ctrl-C.

  API     {api}
  docs    {api}/docs
  login   {email} / {password}

Fetch a page through the proxy, with a session of 1 GB that was bought for you (any address on the
internet will do; this one works offline):

  curl -x socks5h://{username}:{secret}@{proxy} {api}/

The same port speaks HTTP, for browsers and other programs that send no password by SOCKS5:

  curl -x http://{username}:{secret}@{proxy} {api}/

See the bytes that they cost:

  curl -H 'Authorization: Bearer {token}' {api}/api/bandwidth/sessions

Each start fills the account up to 100 USD and 100 credits, and ends the sessions of earlier
demonstrations.
"""


def settings_for(settings: Settings) -> Settings:
    """Return the settings with loopback targets allowed.

    Raises:
        SettingsError: they would let other machines reach an account whose password is public.
    """
    problems = [
        f"{name}: a demonstration listens on loopback alone, not on {host}"
        for name, host in (("api.host", settings.api.host), ("proxy.host", settings.proxy.host))
        if not ip_address(host).is_loopback
    ]
    if problems:
        raise SettingsError(problems)
    egress = msgspec.structs.replace(settings.egress, allow=(*settings.egress.allow, *LOOPBACK))
    return msgspec.structs.replace(settings, egress=egress)


async def prepare(daemon: Daemon) -> str:
    """Fund the account, buy a session in the place of older ones, and return how to use it."""
    token, user_id = await _account(daemon)
    await _fund(daemon)
    old = await daemon.market.bandwidth.page(
        user_id, status=SessionStatus.ACTIVE, before="", limit=PAGE_MAX_SESSIONS
    )
    for session in old:
        await daemon.market.bandwidth.end(user_id, session.id)
    bought = await daemon.market.bandwidth.buy(
        user_id, quota_bytes=SESSION_BYTES, price_per_gb=None
    )
    return _text(daemon, token, bought)


async def _account(daemon: Daemon) -> tuple[str, str]:
    """Log in as the demonstration's user, made at the first start without an e-mail to them."""
    try:
        login = await daemon.market.accounts.login(email=EMAIL, password=PASSWORD)
    except MarketError as error:
        if error.code is not Code.INVALID_CREDENTIALS:
            raise
        user = await accounts.prepared_user(
            daemon.market.passwords,
            user_id=daemon.market.context.identifiers.new(),
            username=USERNAME,
            email=EMAIL,
            password=PASSWORD,
            now=clock.seconds(),
        )
        await daemon.store.write(accounts.add_user, user)
        login = await daemon.market.accounts.login(email=EMAIL, password=PASSWORD)
    return login.token, login.profile.user_id


async def _fund(daemon: Daemon) -> None:
    """Bring both wallets up to the same sum at every start."""
    has = await daemon.store.read(accounts.spendable, EMAIL)
    for currency in Currency:
        if has[currency] < FUNDS:
            transfer = daemon.market.context.identifiers.new()
            await daemon.store.write(
                accounts.deposit,
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
    return TEXT.format(
        api=f"{scheme}://{format_address(api.host, bound_port(daemon.listeners.api))}",
        proxy=format_address(bought.host, bought.port),
        email=EMAIL,
        password=PASSWORD,
        token=token,
        username=bought.username,
        secret=bought.password,
    )
