"""The prices of the service: sessions, work, fees, payments and payouts, without a login."""

from typing import Any

from msgspec import Struct

from api.http.literals import PAYOUT_METHODS, PayoutMethodKind
from api.routing.codec import money
from api.routing.routes import Auth, Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.market import Market
from market.payments.terms import DAY_SECONDS

PARTS = 10_000  # of a whole: the unit in which fees are kept


class TrafficPrices(Struct):
    """Prices of sessions in USD per GB, and the share of the owner of an exit in percent.

    Without a price of the buyer's own a GB costs `price_per_gb`. `cost_floor_usd` is the smallest
    purchase. `exit_share_percent` is null where the service has no exits.
    """

    price_per_gb: float
    price_per_gb_floor: float
    cost_floor_usd: float
    exit_share_percent: int | None


class GpuPrice(Struct):
    """The price of an hour of a GPU."""

    gpu_model: str
    usd_per_hour: float


class WorkPrices(Struct):
    """Prices of deploys in USD per GPU and hour, and the house's part of the pay of each job."""

    gpus: list[GpuPrice]
    default_usd_per_hour: float
    fee_percent: float


class PaymentPrices(Struct):
    """Bounds of a payment; without `providers` the operator pays money in."""

    providers: list[str]
    min_usd: float
    max_usd: float
    refund_days: int


class PayoutPrices(Struct):
    """The smallest payout of earnings, and its fee; without `methods` nothing is paid out."""

    methods: list[PayoutMethodKind]
    minimum_usd: float
    fee_usd: float


class PricesReply(Reply, kw_only=True):
    """All prices, for a caller with a login at the caller's own price of a GB.

    A credit is worth `credit_usd`.
    """

    credit_usd: float
    traffic: TrafficPrices
    work: WorkPrices
    payments: PaymentPrices
    payouts: PayoutPrices


class PriceRoutes:
    """The route of the prices."""

    def __init__(self, market: Market) -> None:
        self._market = market

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                "/api/prices",
                "What does everything cost",
                self.prices,
                PricesReply,
                auth=Auth.OPTIONAL_JWT,
                scope=Scope.SESSIONS_READ,
            )
        ]

    async def prices(self, call: Call[Nothing, Any]) -> PricesReply:
        """Return the prices."""
        market = self._market
        rates = market.deploys.rates
        return PricesReply(
            credit_usd=money(rates.credit),
            traffic=await self._traffic(None if call.login is None else call.user_id),
            work=WorkPrices(
                gpus=[GpuPrice(model, money(usd)) for model, usd in sorted(rates.by_model.items())],
                default_usd_per_hour=money(rates.default),
                fee_percent=market.jobs.fee * 100 / PARTS,
            ),
            payments=self._payments(),
            payouts=self._payouts(),
        )

    async def _traffic(self, user_id: str | None) -> TrafficPrices:
        terms, exits = await self._market.bandwidth.terms_of(user_id), self._market.exits.terms
        return TrafficPrices(
            price_per_gb=money(max(terms.price_default, terms.price_floor)),
            price_per_gb_floor=money(terms.price_floor),
            cost_floor_usd=money(terms.cost_floor),
            exit_share_percent=exits.share_percent if exits.is_offered else None,
        )

    def _payments(self) -> PaymentPrices:
        payments = self._market.payments
        return PaymentPrices(
            providers=list(payments.provider_names),
            min_usd=money(payments.terms.least),
            max_usd=money(payments.terms.most),
            refund_days=payments.terms.refund_seconds // DAY_SECONDS,
        )

    def _payouts(self) -> PayoutPrices:
        terms = self._market.payouts.terms
        return PayoutPrices(
            methods=[PAYOUT_METHODS[each] for each in sorted(terms.methods)],
            minimum_usd=money(terms.minimum),
            fee_usd=money(terms.fee),
        )
