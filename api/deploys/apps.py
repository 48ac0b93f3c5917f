"""Routes of apps: the keys that open jobs and deploys, and their addresses."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from api.http.identifiers import in_path
from api.reverse.admission import KEY_PARAMETER
from api.reverse.server import AppServer
from api.routing.routes import Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.base.errors import Code, MarketError
from market.deploys.apps import Apps, Opened


class AppPort(Struct):
    """A port of an app, and the address at which it is opened once, with the key in it."""

    name: str
    port: int
    url: str


class AppItem(Struct):
    """An app, its address, and its traffic.

    `url` is that of its first port. `key` is absent, also from `url`, for an API key that may not
    write jobs, and where the key cannot be read any more: then a new one is needed. Bytes are those
    of bodies, since this service has started; they cost nothing.
    """

    # One field for each thing that a buyer wants to know.
    id: str
    url: str
    is_ready: bool
    ports: list[AppPort]
    streams: int
    requests: int
    received_bytes: int
    sent_bytes: int
    key: str | UnsetType = UNSET
    replica: int | UnsetType = UNSET


class AppReply(Reply, kw_only=True):
    """An app of the caller's."""

    app: AppItem


class DeployAppsReply(Reply, kw_only=True):
    """A deploy as an app, which leads to any of its replicas, and its ready replicas as apps."""

    app: AppItem
    replicas: list[AppItem]


class AppRoutes:
    """The routes of apps.

    Args:
        door: where apps are reached; None where this service has none.
    """

    def __init__(self, apps: Apps, door: AppServer | None) -> None:
        self._apps = apps
        self._door = door

    def table(self) -> list[Route]:
        """Return the declarations."""
        of_job = (Code.JOB_NOT_FOUND, Code.JOB_OVER, Code.NO_APP, Code.APPS_NOT_OFFERED)
        of_deploy = (Code.DEPLOY_NOT_FOUND, Code.DEPLOY_OVER, Code.NO_APP, Code.APPS_NOT_OFFERED)
        return [
            Route(
                "GET",
                "/api/jobs/{job_id}/app",
                "Where my job is opened in a browser",
                self.of_job,
                AppReply,
                scope=Scope.JOBS_READ,
                errors=of_job,
            ),
            Route(
                "POST",
                "/api/jobs/{job_id}/app/key",
                "Have another key open my job, and end what the one before has opened",
                self.new_job_key,
                AppReply,
                scope=Scope.JOBS_WRITE,
                errors=of_job,
            ),
            Route(
                "GET",
                "/api/deploy/job/{deploy_id}/apps",
                "Where my deploy and its replicas are opened in a browser",
                self.of_deploy,
                DeployAppsReply,
                scope=Scope.JOBS_READ,
                errors=of_deploy,
            ),
            Route(
                "POST",
                "/api/deploy/job/{deploy_id}/app/key",
                "Have another key open my deploy, and end what the one before has opened",
                self.new_deploy_key,
                AppReply,
                scope=Scope.JOBS_WRITE,
                errors=of_deploy,
            ),
        ]

    async def of_job(self, call: Call[Nothing, Any]) -> AppReply:
        """Return a job of the caller's as an app."""
        door, job_id = self._offered(), in_path(call.path["job_id"], Code.JOB_NOT_FOUND)
        app = await self._apps.of_job(call.user_id, job_id, call.caller.maker)
        return AppReply(app=_item(door, _shown(call, app)))

    async def new_job_key(self, call: Call[Nothing, Any]) -> AppReply:
        """Make a key for a job of the caller's."""
        door, job_id = self._offered(), in_path(call.path["job_id"], Code.JOB_NOT_FOUND)
        app = await self._apps.new_job_key(call.user_id, job_id, call.caller.maker)
        return AppReply(app=_item(door, app))

    async def of_deploy(self, call: Call[Nothing, Any]) -> DeployAppsReply:
        """Return a deploy of the caller and its replicas as an app."""
        door, deploy_id = self._offered(), in_path(call.path["deploy_id"], Code.DEPLOY_NOT_FOUND)
        whole, *replicas = await self._apps.of_deploy(call.user_id, deploy_id, call.caller.maker)
        return DeployAppsReply(
            app=_item(door, _shown(call, whole)),
            replicas=[_item(door, _shown(call, each)) for each in replicas],
        )

    async def new_deploy_key(self, call: Call[Nothing, Any]) -> AppReply:
        """Make a key for a deploy of the caller's."""
        door, deploy_id = self._offered(), in_path(call.path["deploy_id"], Code.DEPLOY_NOT_FOUND)
        app = await self._apps.new_deploy_key(call.user_id, deploy_id, call.caller.maker)
        return AppReply(app=_item(door, app))

    def _offered(self) -> AppServer:
        if self._door is None:
            raise MarketError(Code.APPS_NOT_OFFERED)
        return self._door


def _shown(call: Call[Any, Any], app: Opened) -> Opened:
    """Return an app without its key for an API key that may only read: the key runs commands."""
    grant = call.caller.key
    if grant is None or Scope.JOBS_WRITE in grant.scopes:
        return app
    return replace(app, key=None)


def _item(door: AppServer, app: Opened) -> AppItem:
    traffic = door.streams.traffic(app.id)
    first, *_ = app.ports
    ports = [AppPort(each.name, each.port, _url(door, app, each.port)) for each in app.ports]
    item = AppItem(
        id=app.id,
        url=_url(door, app, 0 if len(app.ports) == 1 else first.port),
        is_ready=app.is_ready,
        ports=ports,
        streams=door.streams.of(app.id),
        requests=traffic.requests,
        received_bytes=traffic.received,
        sent_bytes=traffic.sent,
        key=UNSET if app.key is None else app.key,
    )
    if app.number:
        item.replica = app.number
    return item


def _url(door: AppServer, app: Opened, port: int) -> str:
    """Return the URL of an app with its key."""
    url = door.places.url(app.id, port)
    return url if app.key is None else f"{url}?{KEY_PARAMETER}={app.key}"
