"""The table of routes: every endpoint of the API, from a marketplace."""

from collections.abc import Awaitable, Callable

from api.accounts.accounts import AccountRoutes
from api.accounts.acts import ActRoutes
from api.accounts.device_codes import DeviceCodeRoutes
from api.accounts.keys import KeyRoutes
from api.accounts.leaving import LeavingRoutes
from api.accounts.referrals import ReferralRoutes
from api.assistant.assistant import AssistantRoutes
from api.bandwidth.ip import IpRoutes
from api.bandwidth.sessions import BandwidthRoutes
from api.bandwidth.usage import UsageRoutes
from api.deploys.apps import AppRoutes
from api.deploys.deploys import DeployRoutes
from api.devices.device_work import DeviceRoutes
from api.devices.supply import SupplyRoutes
from api.devices.workers import WorkerRoutes
from api.exits.exits import ExitRoutes
from api.files.artifacts import ArtifactRoutes
from api.jobs.answers import AnswerRoutes
from api.jobs.appeals import AppealRoutes
from api.jobs.attempts import AttemptRoutes
from api.jobs.jobs import JobRoutes
from api.jobs.reviews import ReviewRoutes
from api.jobs.shortages import Shortages
from api.jobs.work import WorkRoutes
from api.logs.logs import LogRoutes
from api.money.prices import PriceRoutes
from api.money.wallet import WalletRoutes
from api.notify.events import EventRoutes
from api.notify.webhooks import WebhookRoutes
from api.ops.health import HealthRoutes
from api.payments.particulars import ParticularsRoutes
from api.payments.payments import PaymentRoutes
from api.payments.receipts import ReceiptRoutes
from api.payments.top_ups import TopUpRoutes
from api.payouts.payouts import PayoutRoutes
from api.reverse.server import AppServer
from api.routing.cookies import Cookies
from api.routing.response_cache import Answers
from api.routing.routes import Route
from api.site.look import Logo
from api.site.site import SiteRoutes
from market.market import Market


def routes(
    market: Market,
    assistant: AssistantRoutes,
    *,
    why_not_ready: Callable[[], Awaitable[str]],
    app_url: str,
    cookies: Cookies,
    has_mail: bool,
    logo: Logo | None = None,
    door: AppServer | None = None,
) -> list[Route]:
    """Return every endpoint; a new one is added to the file of its resource, or that file here.

    Args:
        market: the marketplace.
        assistant: the routes of the assistant, which asks a model.
        why_not_ready: says why customers cannot be served; "" when they can.
        app_url: where referral links lead.
        cookies: where browsers keep logins.
        has_mail: whether e-mails go out.
        logo: of the service; receipts have it.
        door: where apps are reached; None where they are not.
    """
    responses = Answers(market.context.store.version)
    return [
        *HealthRoutes(why_not_ready).table(),
        *AccountRoutes(market.accounts, market.recovery, cookies, has_mail=has_mail).table(),
        *LeavingRoutes(market.leaving.exports, market.leaving.closing, cookies).table(),
        *ActRoutes(market.leaving.acts).table(),
        *KeyRoutes(market.keys, market.made_by_keys).table(),
        *BandwidthRoutes(market.bandwidth).table(),
        *UsageRoutes(market.usage).table(),
        *WebhookRoutes(market.webhooks).table(),
        *DeviceCodeRoutes(market.device_codes).table(),
        *WorkerRoutes(
            market.devices, market.jobs, market.job_sweeper, market.exits, market.device_work
        ).table(),
        *WorkRoutes(market.dispatch).table(),
        *ExitRoutes(market.exits).table(),
        *IpRoutes(market.exits).table(),
        *JobRoutes(market.jobs, market.dispatch, responses).table(),
        *DeviceRoutes(market.device_work, market.devices, market.exits).table(),
        *AttemptRoutes(market.attempt_reports, market.jobs.lease_seconds).table(),
        *ReviewRoutes(market.reviews).table(),
        *AnswerRoutes(market.answers).table(),
        *AppealRoutes(market.appeals).table(),
        *LogRoutes(market.logs).table(),
        *ArtifactRoutes(market.artifacts).table(),
        *ReferralRoutes(market.referrals, app_url).table(),
        *DeployRoutes(
            market.deploys, market.rollouts, Shortages(market.jobs, market.dispatch)
        ).table(),
        *SupplyRoutes(market.supply, market.exits).table(),
        *AppRoutes(market.apps, door).table(),
        *assistant.table(),
        *EventRoutes(market.event_feed).table(),
        *SiteRoutes(market.site, market.texts, market.status).table(),
        *PriceRoutes(market).table(),
        *PaymentRoutes(market.payments, market.payouts).table(),
        *ReceiptRoutes(market.payments, logo).table(),
        *ParticularsRoutes(market.particulars).table(),
        *TopUpRoutes(market.top_ups).table(),
        *WalletRoutes(market.wallet, market.exits, market.reviews).table(),
        *PayoutRoutes(market.payouts).table(),
    ]
