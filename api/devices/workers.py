"""Routes of worker devices: tokens, heartbeats, the list (specification 4.3 to 4.6)."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, field

from api.accounts.accounts import RequiredText
from api.devices.reputations import Reputation, shown
from api.http.identifiers import in_body
from api.http.literals import (
    DEVICE_TYPES,
    EXIT_STATES,
    WORK_STATES,
    DeviceType,
    ExitState,
    WorkState,
)
from api.routing.codec import Money, money
from api.routing.listing import Listed, Page, Timestamp, timestamp
from api.routing.routes import Auth, Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.base.errors import Code, MarketError
from market.devices.devices import NAME_MAX_CHARACTERS, Devices, Report, WorkerToken
from market.dispatch.device_work import DeviceWork
from market.exits.consents import Exits
from market.jobs.jobs import Jobs
from market.jobs.sweeper import JobSweeper
from storage.devices.devices import DeviceRow
from storage.exits.exits import DayRow

Celsius = Annotated[float, Meta(ge=-50, le=150)]
Percentage = Annotated[float, Meta(ge=0, le=100)]
ShortText = Annotated[str, Meta(min_length=1, max_length=NAME_MAX_CHARACTERS)]


class CreateTokenRequest(Struct):
    """The name of a new device, its type, and its least price, in USD per hour.

    `min_price_usd` guides the offers to the device; it never forbids accepting a job for less.
    """

    name: ShortText
    device_type: DeviceType | None = None
    min_price_usd: Money | None = None


class CreateTokenReply(Reply, kw_only=True):
    """A worker token, returned only here, and its identifier, which is also the device's."""

    token: str
    token_id: str


class HeartbeatRequest(Struct):
    """Report of a device about itself. A field left out keeps its last value."""

    hostname: ShortText | None = None
    gpu_name: Annotated[str, Meta(max_length=NAME_MAX_CHARACTERS)] | None = None
    cpu_cores: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    ram_gb: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    cpu_temp: Celsius | None = None
    gpu_temp: Celsius | None = None
    cpu_pct: Percentage | None = None
    ram_pct: Percentage | None = None


class DeviceItem(Struct):
    """A device in the list; memory in GB, earnings in credits since 00:00 UTC.

    `earn_today_usd` and `shared_bytes_today` are its earnings and bytes as an exit since then.
    `work` is its state: `not_asking` means that it is alive, but no agent requests work, as with an
    exit; `wants_none` means that its owner's rules have it rest. Values that it never reported are
    absent. `exit` is its state as an exit, for a device that is or was one. `is_online` means that
    it showed life lately, or is attached as an exit.
    """

    # One field for each thing that an owner wants to know.
    id: str
    hostname: str
    device_type: DeviceType
    gpu_name: str
    cpu_cores: int
    ram_gb: float
    is_online: bool
    earn_today: float
    earn_today_usd: float
    shared_bytes_today: int
    reputation: Reputation
    work: WorkState
    exit: ExitState | UnsetType = UNSET
    last_heartbeat_at: Timestamp | UnsetType = UNSET
    cpu_temp: float | UnsetType = UNSET
    gpu_temp: float | UnsetType = UNSET
    cpu_pct: float | UnsetType = UNSET
    ram_pct: float | UnsetType = UNSET


class DevicesReply(Listed[DeviceItem], kw_only=True):
    """Devices, newest first; `next_cursor` is there when there are more."""

    items: list[DeviceItem] = field(name="devices")


class TokenItem(Struct):
    """A worker token in the list, without its secret; price in USD per hour."""

    token_id: str
    name: str
    device_type: DeviceType
    created_at: Timestamp
    min_price_usd: float | UnsetType = UNSET
    revoked_at: Timestamp | UnsetType = UNSET


class TokensReply(Listed[TokenItem], kw_only=True):
    """Worker tokens, newest first; `next_cursor` is there when there are more."""

    items: list[TokenItem] = field(name="tokens")


class RevokeRequest(Struct):
    """Token to end."""

    token_id: RequiredText


class TunnelDoor(Struct):
    """Address where a device attaches to another daemon."""

    host: str
    port: int
    certificate_sha256: str


class TunnelReply(Reply, kw_only=True):
    """Addresses where a device attaches for streams into its jobs.

    `certificate_sha256` is that of the certificate there, in hexadecimal. `doors` are those of the
    other daemons of the service: streams come from whichever a client is connected to.
    """

    host: str
    port: int
    certificate_sha256: str
    doors: list[TunnelDoor]


class WorkerRoutes:
    """The routes of worker devices."""

    def __init__(
        self,
        devices: Devices,
        jobs: Jobs,
        sweeper: JobSweeper,
        exits: Exits,
        device_work: DeviceWork,
    ) -> None:
        self._devices = devices
        self._device_work = device_work
        self._jobs = jobs
        self._sweeper = sweeper
        self._exits = exits

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                "/api/worker/token/create",
                "Register a worker device and make its token",
                self.create_token,
                CreateTokenReply,
                scope=Scope.DEVICES_WRITE,
                body=CreateTokenRequest,
                example={"name": "rig-1", "device_type": "server", "min_price_usd": 0.2},
                idempotent=True,
                errors=(Code.TOO_MANY_DEVICES,),
            ),
            Route(
                "GET",
                "/api/worker/tokens",
                "List my worker tokens",
                self.tokens,
                TokensReply,
                scope=Scope.DEVICES_READ,
                query=Page,
            ),
            Route(
                "POST",
                "/api/worker/token/revoke",
                "End a worker token",
                self.revoke_token,
                Reply,
                scope=Scope.DEVICES_WRITE,
                body=RevokeRequest,
                errors=(Code.TOKEN_NOT_FOUND,),
            ),
            Route(
                "POST",
                "/api/worker/heartbeat",
                "Report that this device is alive",
                self.heartbeat,
                Reply,
                auth=Auth.WORKER,
                body=HeartbeatRequest,
                example={"gpu_name": "RTX 4090", "cpu_cores": 16, "ram_gb": 64, "cpu_pct": 12.5},
                body_optional=True,
            ),
            Route(
                "POST",
                "/api/worker/offline",
                "Report that this device leaves",
                self.offline,
                Reply,
                auth=Auth.WORKER,
            ),
            Route(
                "GET",
                "/api/worker/tunnel",
                "Say where the device attaches for connections to ports of its jobs",
                self.tunnel,
                TunnelReply,
                auth=Auth.WORKER,
                errors=(Code.TUNNELS_NOT_OFFERED,),
            ),
            Route(
                "GET",
                "/api/worker/devices",
                "List my worker devices",
                self.list_devices,
                DevicesReply,
                scope=Scope.DEVICES_READ,
                query=Page,
            ),
        ]

    async def create_token(self, call: Call[CreateTokenRequest, Any]) -> CreateTokenReply:
        """Register a device."""
        body = call.body
        made = await self._devices.create(
            call.user_id,
            name=body.name,
            device_type=body.device_type or "desktop",
            min_price_usd=body.min_price_usd,
            maker=call.caller.maker,
            receipt=call.receipt(_made),
        )
        return _made(made)

    async def tokens(self, call: Call[Nothing, Page]) -> TokensReply:
        """List the caller's tokens."""
        return TokensReply.of(call.query, await self._rows(call), _token_item)

    async def revoke_token(self, call: Call[RevokeRequest, Any]) -> Reply:
        """End a token immediately; the jobs of its device wait for another device."""
        device_id = in_body(call.body.token_id, "token_id")
        await self._devices.revoke(call.user_id, device_id)
        self._exits.tell(device_id)
        await self._sweeper.take_back_from(device_id)
        return Reply()

    async def heartbeat(self, call: Call[HeartbeatRequest, Any]) -> Reply:
        """Take a report."""
        self._devices.heartbeat(call.device, report_of(call.body))
        self._devices.origins.saw(call.device.id, call.address)
        return Reply()

    async def offline(self, call: Call[Nothing, Any]) -> Reply:
        """Note that the device leaves."""
        await self._devices.offline(call.device)
        return Reply()

    async def tunnel(self, call: Call[Nothing, Any]) -> TunnelReply:  # noqa: ARG002 - the same for all
        """Return the address at which devices attach."""
        door = self._exits.attached.door()
        if door is None:
            raise MarketError(Code.TUNNELS_NOT_OFFERED)
        others = [
            TunnelDoor(each.host, each.port, each.certificate_sha256)
            for each in self._exits.attached.doors()
        ]
        return TunnelReply(
            host=door.host,
            port=door.port,
            certificate_sha256=door.certificate_sha256,
            doors=others,
        )

    async def list_devices(self, call: Call[Nothing, Page]) -> DevicesReply:
        """List the caller's devices, as of now."""
        devices, cursor = call.query.cut(await self._rows(call))
        earned = await self._jobs.earned_today(call.user_id)
        device_ids = [device.id for device in devices]
        shared = await self._exits.today(device_ids)
        reputations = await self._devices.reputations(device_ids)
        states = await self._device_work.states(devices)
        exits = await self._exits.states(device_ids)
        items = [
            self._device_item(
                device,
                earned.get(device.id, 0),
                shared.get(device.id),
                shown(reputations[device.id]),
                WORK_STATES[states[device.id]],
                exits.get(device.id),
            )
            for device in devices
        ]
        return DevicesReply(items=items, next_cursor=cursor)

    def _device_item(
        self,
        device: DeviceRow,
        earned: int,
        shared: DayRow | None,
        reputation: Reputation,
        work: WorkState,
        exit_state: str | None,
    ) -> DeviceItem:
        return DeviceItem(
            id=device.id,
            hostname=device.hostname,
            device_type=DEVICE_TYPES[device.device_type],
            gpu_name=device.gpu_name,
            cpu_cores=device.cpu_cores,
            ram_gb=device.ram_gb,
            is_online=self._exits.is_online(device, exit_state),
            earn_today=money(earned),
            earn_today_usd=money(0 if shared is None else shared.earned),
            shared_bytes_today=0 if shared is None else shared.used_bytes,
            reputation=reputation,
            work=work,
            exit=UNSET if exit_state is None else EXIT_STATES[exit_state],
            last_heartbeat_at=_moment(device.last_heartbeat_at),
            cpu_temp=_known(device.cpu_temp),
            gpu_temp=_known(device.gpu_temp),
            cpu_pct=_known(device.cpu_pct),
            ram_pct=_known(device.ram_pct),
        )

    async def _rows(self, call: Call[Any, Page]) -> list[DeviceRow]:
        return await self._devices.page(
            call.user_id, before=call.query.before, limit=call.query.fetch_limit
        )


def _made(made: WorkerToken) -> CreateTokenReply:
    return CreateTokenReply(token=made.token, token_id=made.device_id)


def report_of(body: HeartbeatRequest) -> Report:
    """Return the report of a device, without the fields that it left out."""
    report = Report()
    if body.hostname is not None:
        report["hostname"] = body.hostname
    if body.gpu_name is not None:
        report["gpu_name"] = body.gpu_name
    if body.cpu_cores is not None:
        report["cpu_cores"] = body.cpu_cores
    if body.ram_gb is not None:
        report["ram_gb"] = body.ram_gb
    if body.cpu_temp is not None:
        report["cpu_temp"] = body.cpu_temp
    if body.gpu_temp is not None:
        report["gpu_temp"] = body.gpu_temp
    if body.cpu_pct is not None:
        report["cpu_pct"] = body.cpu_pct
    if body.ram_pct is not None:
        report["ram_pct"] = body.ram_pct
    return report


def _known(value: float | None) -> float | UnsetType:
    return UNSET if value is None else value


def _moment(seconds: int | None) -> Timestamp | UnsetType:
    return UNSET if seconds is None else timestamp(seconds)


def _token_item(device: DeviceRow) -> TokenItem:
    price, revoked = device.min_price_usd, device.revoked_at
    return TokenItem(
        token_id=device.id,
        name=device.name,
        device_type=DEVICE_TYPES[device.device_type],
        created_at=timestamp(device.created_at),
        min_price_usd=UNSET if price is None else money(price),
        revoked_at=UNSET if revoked is None else timestamp(revoked),
    )
