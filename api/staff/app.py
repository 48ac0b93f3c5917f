"""The staff API: the table of its routes, and its server."""

from collections.abc import Iterable
from functools import partial
from typing import NoReturn

from api import openapi
from api.http.allowed import Allowed
from api.http.limits import ApiLimits
from api.http.prefer import Handling
from api.routing.cookies import SERVICE, Cookies
from api.routing.routes import StaffRoute
from api.server import Face, HttpServer
from api.staff.batches import StaffBatchRoutes
from api.staff.cases import CaseRoutes
from api.staff.counts import StaffCounts
from api.staff.jobs import JudgingRoutes
from api.staff.leaving import StaffLeavingRoutes
from api.staff.logins import LoginRoutes
from api.staff.members import MemberRoutes
from api.staff.money import MoneyRoutes
from api.staff.pages import DOCUMENT_PATH, served
from api.staff.payments import StaffPaymentRoutes
from api.staff.payouts import StaffPayoutRoutes
from api.staff.rescues import RescueRoutes
from api.staff.site import SiteRoutes
from api.staff.stops import StopRoutes
from api.staff.tickets import TicketRoutes
from api.staff.users import UserRoutes
from market.base.errors import Code, MarketError
from market.events.idempotency import Seal
from market.staff.desk import StaffDesk
from market.staff.members.logins import LIFETIME_SECONDS

BODY_MAX_BYTES = 256 * 1024


def routes(desk: StaffDesk, cookies: Cookies) -> list[StaffRoute]:
    """Return every endpoint of the staff; a new file of routes is a line here."""
    return [
        *LoginRoutes(desk, cookies).table(),
        *UserRoutes(desk).table(),
        *StopRoutes(desk).table(),
        *MemberRoutes(desk).table(),
        *MoneyRoutes(desk).table(),
        *StaffPaymentRoutes(desk).table(),
        *StaffPayoutRoutes(desk).table(),
        *StaffBatchRoutes(desk).table(),
        *StaffLeavingRoutes(desk).table(),
        *JudgingRoutes(desk).table(),
        *CaseRoutes(desk).table(),
        *TicketRoutes(desk).table(),
        *SiteRoutes(desk).table(),
        *RescueRoutes(desk).table(),
    ]


def server(
    desk: StaffDesk,
    *,
    seal: Seal,
    is_secure: bool,
    allow: Iterable[str],
    trusted_proxies: Iterable[str],
    limits: ApiLimits,
    version: str,
    base_url: str,
    counts: StaffCounts,
) -> HttpServer:
    """Return the server of the staff API.

    Args:
        desk: the services of the staff.
        seal: seals the answers to requests with an Idempotency-Key.
        is_secure: whether browsers come over https.
        allow: networks whose clients get an answer.
        trusted_proxies: networks whose X-Forwarded-For is believed.
        limits: bounds on clients.
        version: the program's.
        base_url: the address of the staff API, "" if it is unknown.
        counts: takes the numbers of requests.
    """
    cookies = Cookies(
        is_secure=is_secure, lifetime_seconds=LIFETIME_SECONDS, name=f"{SERVICE}-staff"
    )
    return HttpServer(
        routes(desk, cookies),
        authenticate=_refuse,
        authenticate_key=_refuse,
        authenticate_worker=_refuse,
        authenticate_staff=desk.authenticate,
        is_current=desk.is_current,
        body_max_bytes=BODY_MAX_BYTES,
        seal=seal,
        now=desk.context.now,
        trusted_proxies=trusted_proxies,
        limits=limits,
        cookies=cookies,
        face=Face(
            version=version,
            base_url=base_url,
            document=partial(openapi.document, outline=openapi.STAFF),
            pages=served,
            handling=Handling.STRICT,
            allowed=Allowed(allow),
            listed_at=DOCUMENT_PATH,
            count=counts.count,
        ),
    )


async def _refuse(*_: str) -> NoReturn:
    """Refuse the login of a customer or device: no route of the staff takes one."""
    raise MarketError(Code.UNAUTHORIZED)
