"""Apps: jobs and deploys that users reach in a browser, and the keys that open them.

A job that declares a port of the protocol `http` is an app, and so is a deploy whose replicas do: a
request for a deploy reaches one of them. A key opens one app. It is random, and made at the buyer's
first request; a new key ends the sessions of the old one.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import Struct

from market.accounts.makers import require_current
from market.accounts.scopes import LOCAL, Maker
from market.bandwidth.credentials import hash_password, matches
from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.base.states import JobStatus
from market.deploys.rollouts import Serving, serving
from market.deploys.templates import template_of
from market.events.context import Context
from market.jobs.specs import Specs
from proxyctl.protocol.jobspec import Port, payload_of
from storage.deploys import apps as queries
from storage.deploys import deploys as deploy_queries
from storage.deploys import rollouts as rollout_queries
from storage.deploys.apps import KeyRow
from storage.engines.store import Transaction
from storage.jobs import jobs as job_queries

KEY_BYTES = 32
HTTP = "http"
# A person's work is in one replica of these, so that each visitor stays with the same.
STAYING_TYPES = frozenset(("Jupyter",))
_Store = Callable[[Transaction, KeyRow], Awaitable[None]]  # how a key is stored


class App(Struct, frozen=True):
    """App in its door's view: the key that opens it, and its present targets.

    `stays`: a visitor of a replica should reach the same replica again.
    """

    id: str
    key_hash: str
    targets: tuple[Serving, ...] = ()
    stays: bool = False
    buyer_id: str = ""

    def opens(self, key: str) -> bool:
        """Return whether a key opens it, in constant time."""
        return matches(key.encode("utf-8", "surrogateescape"), self.key_hash)


class Opened(Struct, frozen=True):
    """App in its buyer's view: its key and its ports.

    `ports` are the ports of the protocol `http`, at least one. `key`: None once it cannot be
    decrypted any more. `number` is the number of the replica, or 0 for a job without replicas.
    """

    id: str
    ports: tuple[Port, ...]
    key: str | None
    is_ready: bool
    number: int = 0


class Apps:
    """Keys and targets of apps.

    Args:
        sealing: encrypts keys, so that buyers can see them again.
    """

    def __init__(self, context: Context, sealing: Sealing, specs: Specs) -> None:
        self._store = context.store
        self._now = context.now
        self._sealing = sealing
        self._specs = specs
        self._watchers: list[Callable[[str], None]] = []

    def watch(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with each app whose key is replaced from now on."""
        self._watchers.append(changed)

    async def find(self, app_id: str) -> App | None:
        """Return an app that has a key; None for one that has none, or is over."""
        return await self._store.read(_find, app_id)

    async def key_hashes(self, app_ids: Sequence[str]) -> dict[str, str]:
        """Return the hash of the key of each of these apps that still has one."""

        async def read(tx: Transaction) -> dict[str, str]:
            apps = [await _find(tx, each) for each in app_ids]
            return {app.id: app.key_hash for app in apps if app is not None}

        return await self._store.read(read)

    async def of_job(self, user_id: str, job_id: str, maker: Maker = LOCAL) -> Opened:
        """Return a job of a user's as an app.

        A `maker` that has ended since the request began makes no key.

        Raises:
            MarketError: `job_not_found`, `job_over`, `no_app`, `unauthorized`.
        """

        async def read(tx: Transaction) -> Opened:
            await require_current(tx, user_id, self._now(), maker)
            return await self._of_job(tx, user_id, job_id, queries.insert)

        return await self._store.write(read)

    async def of_deploy(self, user_id: str, deploy_id: str, maker: Maker = LOCAL) -> list[Opened]:
        """Return a deploy of a user's as an app, and behind it each replica that can be used.

        Raises:
            MarketError: `deploy_not_found`, `deploy_over`, `no_app`, `unauthorized`.
        """

        async def read(tx: Transaction) -> list[Opened]:
            await require_current(tx, user_id, self._now(), maker)
            ports = await _ports_of_deploy(tx, user_id, deploy_id)
            ready = await serving(tx, deploy_id)
            apps = [await self._of_deploy(tx, deploy_id, ports, bool(ready), queries.insert)]
            for each in ready:
                if web := _web(each.ports):
                    made = await self._opened(tx, _of_a_job(each.job_id), queries.insert)
                    apps.append(Opened(each.job_id, web, made, True, each.number))
            return apps

        return await self._store.write(read)

    async def new_job_key(self, user_id: str, job_id: str, maker: Maker = LOCAL) -> Opened:
        """Replace the key of a job; the old key's sessions end.

        Raises:
            MarketError: as `of_job`.
        """

        async def change(tx: Transaction) -> Opened:
            await require_current(tx, user_id, self._now(), maker)
            return await self._of_job(tx, user_id, job_id, queries.put)

        opened = await self._store.write(change)
        self._changed(job_id)
        return opened

    async def new_deploy_key(self, user_id: str, deploy_id: str, maker: Maker = LOCAL) -> Opened:
        """Replace the key of a deploy, not only of its replicas; as `new_job_key`.

        Raises:
            MarketError: as `of_deploy`.
        """

        async def change(tx: Transaction) -> Opened:
            await require_current(tx, user_id, self._now(), maker)
            ports = await _ports_of_deploy(tx, user_id, deploy_id)
            ready = await serving(tx, deploy_id)
            return await self._of_deploy(tx, deploy_id, ports, bool(ready), queries.put)

        opened = await self._store.write(change)
        self._changed(deploy_id)
        return opened

    def _changed(self, app_id: str) -> None:
        for changed in self._watchers:
            changed(app_id)

    async def sweep(self) -> int:
        """Delete the keys of apps that are over. Return their number.

        Raises:
            StoreError: nothing was deleted; these keys open nothing in any case.
        """
        return await self._store.write(queries.forget_over)

    # --- units of work ----------------------------------------------------------------------

    async def _of_job(self, tx: Transaction, user_id: str, job_id: str, store: _Store) -> Opened:
        job = await job_queries.find(tx, job_id)
        if job is None or job.user_id != user_id:
            raise MarketError(Code.JOB_NOT_FOUND)
        spec = await self._specs.find(tx, job_id)
        ports = _web(spec.payload.ports) if spec is not None and spec.payload is not None else ()
        if not ports:
            raise MarketError(Code.NO_APP)
        if job.status not in (JobStatus.WAITING, JobStatus.RUNNING):
            raise MarketError(Code.JOB_OVER)
        target = await _of_running_job(tx, job_id)
        key = await self._opened(tx, _of_a_job(job_id), store)
        return Opened(job_id, ports, key, target is not None)

    async def _of_deploy(
        self,
        tx: Transaction,
        deploy_id: str,
        ports: tuple[Port, ...],
        is_ready: bool,
        store: _Store,
    ) -> Opened:
        blank = KeyRow(deploy_id, None, deploy_id, "", "", 0)
        return Opened(deploy_id, ports, await self._opened(tx, blank, store), is_ready)

    async def _opened(self, tx: Transaction, blank: KeyRow, store: _Store) -> str | None:
        """Store a key as `store` does, and return the one that holds then."""
        key = secrets.token_urlsafe(KEY_BYTES)
        await store(
            tx,
            blank._replace(
                key_hash=hash_password(key.encode()),
                sealed_key=self._sealing.close(key.encode()),
                created_at=self._now(),
            ),
        )
        row = await queries.find(tx, blank.app_id)
        assert row is not None  # noqa: S101 - it was stored just now, or was there
        opened = self._sealing.open(row.sealed_key)
        return None if opened is None else opened.decode()


def _of_a_job(job_id: str) -> KeyRow:
    return KeyRow(job_id, job_id, None, "", "", 0)


def _web(ports: Sequence[Port]) -> tuple[Port, ...]:
    """Return the ports that a browser can speak to."""
    return tuple(each for each in ports if each.protocol == HTTP)


async def _find(tx: Transaction, app_id: str) -> App | None:
    row = await queries.find(tx, app_id)
    if row is None:
        return None
    if row.job_id is not None:
        job = await job_queries.find(tx, row.job_id)
        if job is None or job.status not in (JobStatus.WAITING, JobStatus.RUNNING):
            return None
        target = await _of_running_job(tx, row.job_id)
        targets = () if target is None else (target,)
        return App(app_id, row.key_hash, targets, buyer_id=job.user_id)
    assert row.deploy_id is not None  # noqa: S101 - a constraint of the table
    deploy = await deploy_queries.find(tx, row.deploy_id)
    rollout = await rollout_queries.find(tx, row.deploy_id)
    if deploy is None or rollout is None or rollout.state == "over":
        return None
    replicas = tuple(
        msgspec.structs.replace(each, ports=_web(each.ports))
        for each in await serving(tx, row.deploy_id)
    )
    stays = deploy.job_type in STAYING_TYPES
    return App(app_id, row.key_hash, replicas, stays, deploy.user_id)


async def _of_running_job(tx: Transaction, job_id: str) -> Serving | None:
    """Return the target of a job; None until it runs, and is ready if it has a check."""
    row = await queries.reached(tx, job_id)
    if row is None:
        return None
    payload = payload_of(msgspec.json.decode(row.payload))
    since = row.work_started_at if payload.ready is None else row.ready_at
    if since is None:
        return None
    return Serving(job_id, row.attempt, row.device_id, 0, 0, _web(payload.ports))


async def _ports_of_deploy(tx: Transaction, user_id: str, deploy_id: str) -> tuple[Port, ...]:
    """Return the ports at which requests reach the replicas of a user's deploy.

    Raises:
        MarketError: `deploy_not_found`, `deploy_over`, `no_app`.
    """
    deploy = await deploy_queries.find(tx, deploy_id)
    if deploy is None or deploy.user_id != user_id:
        raise MarketError(Code.DEPLOY_NOT_FOUND)
    rollout = await rollout_queries.find(tx, deploy_id)
    if rollout is None:
        raise MarketError(Code.NO_APP)
    if rollout.state == "over":
        raise MarketError(Code.DEPLOY_OVER)
    (latest, *_) = await rollout_queries.revisions(tx, deploy_id)
    ports = _web(template_of(latest.template).ports)
    if not ports:
        raise MarketError(Code.NO_APP)
    return ports
