"""The route that shows the supply of the market."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from api.routing.codec import money
from api.routing.routes import Call, Nothing, Reply, Route
from market.dispatch import supply
from market.exits.consents import Exits
from market.jobs.matching import MILLION
from market.trust.reputation import WHOLE


class SupplyRow(Struct, kw_only=True):
    """Devices of one kind, and those of them with room for another job.

    `from_usd_per_hour` (their least price) and `reputation` are medians, of devices of at least
    three owners.
    """

    devices: int
    free: int
    from_usd_per_hour: float | UnsetType = UNSET
    reputation: float | UnsetType = UNSET


class GpuRow(SupplyRow, kw_only=True):
    """Devices with GPUs of one model; "" is for devices without, "other" for unknown names.

    `vram_gb` is the most that one has; `paid_usd_per_hour` is the median of recent jobs there.
    """

    gpu: str
    gpus: int
    free_gpus: int
    vram_gb: float
    paid_usd_per_hour: float | UnsetType = UNSET


class StepRow(SupplyRow, kw_only=True):
    """Devices that lend at least `least`, and less than the next row."""

    least: int


class SandboxRow(SupplyRow, kw_only=True):
    """Devices with a kind of sandbox; one may have several. Only bwrap needs no image."""

    sandbox: str


class CountryRow(SupplyRow, kw_only=True):
    """Devices in a country; "other" are those of countries with few owners, or unknown ones."""

    country: str


class RecentPrices(Struct):
    """The prices an hour of the jobs that devices got lately: how many, and their quartiles."""

    jobs: int
    low_usd_per_hour: float
    median_usd_per_hour: float
    high_usd_per_hour: float


class SupplyReply(Reply, kw_only=True):
    """The devices that ask for work now, by their own words, in groups by the things they lend.

    `network` are those that give jobs a network; `attribution` names the sources of countries.
    """

    total: SupplyRow
    gpus: list[GpuRow]
    cores: list[StepRow]
    memory_gb: list[StepRow]
    sandboxes: list[SandboxRow]
    countries: list[CountryRow]
    network: SupplyRow
    attribution: list[str]
    prices: RecentPrices | UnsetType = UNSET


class SupplyRoutes:
    """The route of the supply."""

    def __init__(self, found: supply.Supply, exits: Exits) -> None:
        self._supply = found
        self._exits = exits

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                "/api/market/supply",
                "Count the devices that ask for work, by what they lend",
                self.supply,
                SupplyReply,
            )
        ]

    async def supply(
        self,
        call: Call[Nothing, Any],  # noqa: ARG002 - the same for all
    ) -> SupplyReply:
        """Return the supply."""
        found = await self._supply.find()
        paid = found.paid
        return SupplyReply(
            total=SupplyRow(**_figures(found.total)),
            gpus=[
                GpuRow(
                    **_figures(row),
                    gpu=row.name,
                    gpus=row.gpus,
                    free_gpus=row.free_gpus,
                    vram_gb=row.vram_gb,
                    paid_usd_per_hour=UNSET if row.paid is None else _usd(row.paid),
                )
                for row in found.gpus
            ],
            cores=[StepRow(**_figures(row), least=int(row.name)) for row in found.cores],
            memory_gb=[StepRow(**_figures(row), least=int(row.name)) for row in found.memory],
            sandboxes=[SandboxRow(**_figures(row), sandbox=row.name) for row in found.sandboxes],
            countries=[CountryRow(**_figures(row), country=row.name) for row in found.countries],
            attribution=list(self._exits.attached.attribution()),
            network=SupplyRow(**_figures(found.with_network)),
            prices=UNSET
            if paid is None
            else RecentPrices(paid.jobs, _usd(paid.low), _usd(paid.median), _usd(paid.high)),
        )


def _figures(row: supply.Row) -> dict[str, Any]:
    return {
        "devices": row.devices,
        "free": row.free,
        "from_usd_per_hour": UNSET if row.least_price is None else _usd(row.least_price),
        "reputation": UNSET if row.reputation is None else row.reputation / WHOLE,
    }


def _usd(price: int) -> float:
    return money(price // MILLION)
