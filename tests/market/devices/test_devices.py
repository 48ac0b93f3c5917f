"""Worker devices: tokens, reports, presence, on both engines."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.base.waiting import until
from support.daemons.process import ROOT
from support.database.statements import counted
from support.market.books import refusal
from support.market.events import rows_of, said, types_of
from support.market.market import Market

from market.assistant.languages import LANGUAGES
from market.assistant.phrases import phrase
from market.base.errors import Code, MarketError
from market.devices.devices import LATE_SECONDS, Devices, Report
from market.devices.reports import ONLINE_SECONDS, DevicePace
from storage.devices.devices import DeviceRow
from storage.engines.errors import UnavailableError
from storage.engines.store import Store, Transaction

Call = Callable[..., Awaitable[Any]]


def test_the_shown_online_state_is_the_real_one() -> None:
    for language in LANGUAGES:
        assert f"{ONLINE_SECONDS}" in phrase(language, "devices_help"), language
    assert (
        f"for {ONLINE_SECONDS} seconds after each"
        in (ROOT / "docs" / "how-to" / "jobs.md").read_text()
    )


async def made(market: Market, user: str, name: str = "rig") -> str:
    """Make a device and return its token."""
    token = await market.devices.create(user, name=name, device_type="desktop", min_price_usd=None)
    return token.token


async def device_of(market: Market, user: str) -> DeviceRow:
    return await market.devices.authenticate(await made(market, user))


def restarted(market: Market) -> Devices:
    """Return the devices of a new daemon on the same store."""
    return Devices(market.context, market.bounds)


async def only(devices: Devices, user: str) -> DeviceRow:
    [device] = await devices.page(user, before="", limit=10)
    return device


class Gate:
    """Holds the first call of a store's method until opened; `calls` begin in order."""

    def __init__(self, call: Call, *, after: bool = False) -> None:
        self._call = call
        self._after = after
        self._open = asyncio.Event()
        self.calls = 0
        self.held = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls > 1:
            return await self._call(*args, **kwargs)
        if not self._after:
            self.held.set()
            await self._open.wait()
            return await self._call(*args, **kwargs)
        result = await self._call(*args, **kwargs)
        self.held.set()
        await self._open.wait()
        return result


async def test_a_new_device_is_offline_and_named_like_its_token(market: Market) -> None:
    user = await market.person()
    token = await market.devices.create(
        user, name="rig", device_type="mini_pc", min_price_usd=1_500_000
    )
    device = await only(market.devices, user)
    assert device._replace(token_hash="") == DeviceRow(
        id=token.device_id,
        user_id=user,
        token_hash="",
        name="rig",
        hostname="rig",
        device_type="mini_pc",
        min_price_usd=1_500_000,
        gpu_name="",
        cpu_cores=0,
        ram_gb=0.0,
        cpu_temp=None,
        gpu_temp=None,
        cpu_pct=None,
        ram_pct=None,
        created_at=market.clock.now,
        last_heartbeat_at=None,
        offline_at=None,
        revoked_at=None,
    )
    assert not market.devices.is_heard(device)


async def test_two_tokens_of_one_name_are_two_devices(market: Market) -> None:
    user = await market.person()
    first, second = await made(market, user), await made(market, user)
    assert first != second
    assert len(first) >= 43  # 256 bits in base 64
    devices = [await market.devices.authenticate(token) for token in (first, second)]
    assert devices[0].id != devices[1].id


@pytest.mark.both_engines
async def test_only_a_hash_of_the_token_is_kept(market: Market) -> None:
    user = await market.person()
    token = await made(market, user)

    async def every_text(tx: Transaction) -> list[str]:
        rows = await tx.all(
            lambda *columns: repr(columns),
            "SELECT id, user_id, token_hash, name, hostname, device_type, gpu_name FROM devices",
        )
        return list(rows)

    [stored] = await market.store.read(every_text)
    assert token not in stored
    device = await only(market.devices, user)
    assert await refusal(market.devices.authenticate(device.token_hash)) is Code.WORKER_UNAUTHORIZED


async def test_a_name_that_would_not_print_is_refused(market: Market) -> None:
    user = await market.person()
    for name in ("x" * 201, "a\nb", "\x1b[2J", "\u200b"):
        with pytest.raises(MarketError) as caught:
            await made(market, user, name)
        assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, "name")
    assert await market.devices.page(user, before="", limit=10) == []


async def test_a_name_may_have_two_hundred_characters(market: Market) -> None:
    user = await market.person()
    await made(market, user, "é" * 200)
    assert (await only(market.devices, user)).name == "é" * 200


async def test_a_token_that_was_never_made_is_refused(market: Market) -> None:
    await made(market, await market.person())
    for token in ("", "x", "x" * 257, "é" * 40, "\udcff"):
        assert await refusal(market.devices.authenticate(token)) is Code.WORKER_UNAUTHORIZED


async def test_a_device_is_known_from_memory_without_the_store(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await made(market, await market.person())
    first = await market.devices.authenticate(token)

    async def gone(*_: Any, **__: Any) -> None:
        raise UnavailableError("gone")

    monkeypatch.setattr(market.store, "read", gone)
    assert await market.devices.authenticate(token) == first
    monkeypatch.undo()


@pytest.mark.both_engines
async def test_a_report_is_seen_at_once_and_survives_a_restart_once_flushed(
    market: Market,
) -> None:
    user = await market.person()
    token = await made(market, user)
    device = await market.devices.authenticate(token)
    report = {
        "hostname": "host",
        "gpu_name": "RTX 4090",
        "cpu_cores": 16,
        "ram_gb": 63.5,
        "cpu_temp": -50.0,
        "gpu_temp": 150.0,
        "cpu_pct": 0.0,
        "ram_pct": 100.0,
    }
    market.devices.heartbeat(device, report)
    expected = device._replace(last_heartbeat_at=market.clock.now, **report)
    assert await only(market.devices, user) == expected
    assert await market.devices.authenticate(token) == expected
    assert (await only(restarted(market), user)).gpu_name == ""
    await market.devices.reports.flush()
    later = restarted(market)
    assert await only(later, user) == expected
    assert await later.authenticate(token) == expected
    assert later.is_heard(expected)


async def test_a_heartbeat_keeps_the_fields_that_it_leaves_out(market: Market) -> None:
    user = await market.person()
    token = await made(market, user)
    device = await market.devices.authenticate(token)
    market.devices.heartbeat(device, {"gpu_name": "A100", "cpu_cores": 8, "ram_gb": 32.0})
    market.devices.heartbeat(device, {"cpu_cores": 12})
    await market.devices.reports.flush()
    later = restarted(market)
    later.heartbeat(await later.authenticate(token), {"cpu_pct": 50.0})
    latest = await only(later, user)
    assert (latest.gpu_name, latest.cpu_cores, latest.ram_gb, latest.cpu_pct) == (
        "A100",
        12,
        32.0,
        50.0,
    )
    assert latest.hostname == "rig"


async def test_a_device_is_online_for_ninety_seconds_and_not_longer(market: Market) -> None:
    user = await market.person()
    device = await device_of(market, user)
    market.devices.heartbeat(device, {})
    for seconds, online in ((0, True), (90, True), (1, False)):
        market.clock.now += seconds
        assert market.devices.is_heard(await only(market.devices, user)) is online
    market.devices.heartbeat(device, {})
    assert market.devices.is_heard(await only(market.devices, user))


@pytest.mark.both_engines
async def test_a_device_that_leaves_is_offline_until_its_next_report(market: Market) -> None:
    user = await market.person()
    token = await made(market, user)
    device = await market.devices.authenticate(token)
    market.devices.heartbeat(device, {})
    await market.devices.offline(device)
    assert not market.devices.is_heard(await only(market.devices, user))
    await market.devices.reports.flush()
    later = restarted(market)
    assert not later.is_heard(await later.authenticate(token))
    later.heartbeat(await later.authenticate(token), {})
    assert later.is_heard(await later.authenticate(token))
    await later.reports.flush()
    assert market.devices.is_heard(await only(restarted(market), user))


async def test_a_device_that_leaves_before_it_came_is_offline(market: Market) -> None:
    user = await market.person()
    await market.devices.offline(await device_of(market, user))
    assert not market.devices.is_heard(await only(market.devices, user))
    await market.devices.reports.flush()
    assert (await only(restarted(market), user)).last_heartbeat_at is None


@pytest.mark.both_engines
async def test_a_revoked_token_is_refused_at_once_and_after_a_restart(market: Market) -> None:
    user = await market.person()
    token = await made(market, user)
    device = await market.devices.authenticate(token)
    market.devices.heartbeat(device, {})
    await market.devices.revoke(user, device.id)
    assert await refusal(market.devices.authenticate(token)) is Code.WORKER_UNAUTHORIZED
    assert await refusal(restarted(market).authenticate(token)) is Code.WORKER_UNAUTHORIZED
    revoked = await only(market.devices, user)
    assert revoked.revoked_at == market.clock.now
    assert not market.devices.is_heard(revoked)


async def test_a_token_that_was_never_shown_is_revoked(market: Market) -> None:
    user = await market.person()
    token = await made(market, user)
    device = await only(market.devices, user)
    await market.devices.revoke(user, device.id)
    assert await refusal(market.devices.authenticate(token)) is Code.WORKER_UNAUTHORIZED


@pytest.mark.both_engines
async def test_a_token_revoked_while_it_is_looked_up_is_refused(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await market.person()
    token = await made(market, user)
    device = await only(market.devices, user)
    gate = Gate(market.store.read, after=True)
    monkeypatch.setattr(market.store, "read", gate)
    looking = asyncio.create_task(market.devices.authenticate(token))
    await gate.held.wait()
    await market.devices.revoke(user, device.id)
    gate.open()
    assert await refusal(looking) is Code.WORKER_UNAUTHORIZED
    assert await refusal(market.devices.authenticate(token)) is Code.WORKER_UNAUTHORIZED
    monkeypatch.undo()


async def test_a_report_that_comes_with_the_revocation_brings_nothing_back(market: Market) -> None:
    user = await market.person()
    token = await made(market, user)
    device = await market.devices.authenticate(token)
    await market.devices.revoke(user, device.id)
    market.devices.heartbeat(device, {"gpu_name": "late"})
    assert not market.devices.is_heard(await only(market.devices, user))
    await market.devices.reports.flush()
    later = restarted(market)
    assert await refusal(later.authenticate(token)) is Code.WORKER_UNAUTHORIZED
    assert not later.is_heard(await only(later, user))


async def test_revoking_twice_keeps_the_first_time(market: Market) -> None:
    user = await market.person()
    device = await device_of(market, user)
    await market.devices.revoke(user, device.id)
    first = market.clock.now
    market.clock.now += 60
    await market.devices.revoke(user, device.id)
    assert (await only(market.devices, user)).revoked_at == first
    assert (await only(restarted(market), user)).revoked_at == first


async def test_a_token_of_another_user_is_not_found_and_lives_on(market: Market) -> None:
    user, other = await market.person(), await market.person()
    token = await made(market, user)
    device = await market.devices.authenticate(token)
    assert await refusal(market.devices.revoke(other, device.id)) is Code.TOKEN_NOT_FOUND
    unknown = market.identifiers.new()
    assert await refusal(market.devices.revoke(user, unknown)) is Code.TOKEN_NOT_FOUND
    assert (await market.devices.authenticate(token)).revoked_at is None
    assert (await restarted(market).authenticate(token)).revoked_at is None


async def test_reports_are_written_in_batches(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await market.person()
    devices = [await device_of(market, user) for _ in range(5)]
    sizes: list[int] = []
    write = market.store.write

    async def counting(unit: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(len(args[1]))
        return await write(unit, *args, **kwargs)

    monkeypatch.setattr(market.store, "write", counting)
    market.devices.reports.pace = DevicePace(write_devices=2)
    for _ in range(3):
        for device in devices:
            market.devices.heartbeat(device, {"cpu_cores": 4})
    await market.devices.reports.flush()
    await market.devices.reports.flush()
    assert sizes == [2, 2, 1]
    monkeypatch.undo()
    stored = await restarted(market).page(user, before="", limit=10)
    assert [device.cpu_cores for device in stored] == [4] * 5


async def test_reports_cost_one_statement_however_many_devices_there_are(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await market.person()
    devices = [await device_of(market, user) for _ in range(20)]
    statements = counted(market.store, "write", monkeypatch)
    for device in devices:
        market.devices.heartbeat(device, {"cpu_cores": 4})
    await market.devices.reports.flush()
    # They are locked first, so that two writers cannot deadlock. The owner of the devices that came
    # online is notified of all in one step, and so are their webhooks.
    assert statements == [5]
    for device in devices:
        market.devices.heartbeat(device, {"cpu_cores": 4})
    await market.devices.reports.flush()
    assert statements == [5, 3]


async def test_a_report_is_written_as_it_was_sent(market: Market) -> None:
    user = await market.person()
    device = await device_of(market, user)
    report: Report = {
        "hostname": 'größe "1"',
        "gpu_name": "",
        "cpu_cores": 100_000,
        "ram_gb": 64.0,
        "cpu_temp": -0.1,
        "cpu_pct": 1e-9,
        "ram_pct": 100.0,
    }
    market.devices.heartbeat(device, report)
    said = await only(market.devices, user)
    await market.devices.reports.flush()
    stored = await only(restarted(market), user)
    assert stored == said
    assert [type(value) for value in stored] == [type(value) for value in said]


async def test_devices_with_an_old_report_leave_memory_and_come_back(
    market: Market,
) -> None:
    market.devices.reports.pace = DevicePace(kept_devices=3)
    user = await market.person()
    tokens = [await made(market, user) for _ in range(10)]
    for number, token in enumerate(tokens):
        market.devices.heartbeat(
            await market.devices.authenticate(token), {"gpu_name": str(number)}
        )
    assert len(market.devices.reports._by_token) == 10  # none is written down yet
    await market.devices.reports.flush()
    for number, token in enumerate(tokens):
        assert (await market.devices.authenticate(token)).gpu_name == str(number)
    assert len(market.devices.reports._by_token) == len(market.devices.reports._by_id) == 3


async def test_the_memory_of_revoked_tokens_is_bounded(market: Market) -> None:
    market.devices.reports.pace = DevicePace(revoked_tokens=3)
    user = await market.person()
    devices = [await device_of(market, user) for _ in range(5)]
    for device in devices:
        await market.devices.revoke(user, device.id)
    assert list(market.devices.reports._revoked) == [device.token_hash for device in devices[2:]]


async def test_a_late_report_of_a_forgotten_device_does_not_undo_its_revocation(
    market: Market,
) -> None:
    market.devices.reports.pace = DevicePace(kept_devices=1)
    user = await market.person()
    token = await made(market, user)
    device = await market.devices.authenticate(token)
    await device_of(market, user)
    await market.devices.revoke(user, device.id)
    market.devices.heartbeat(device, {})
    assert await refusal(market.devices.authenticate(token)) is Code.WORKER_UNAUTHORIZED


def failing_once(store: Store, error: BaseException) -> Call:
    """A `write` that raises the first time."""
    write = store.write
    failures = [error]

    async def call(*args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return await write(*args, **kwargs)

    return call


@pytest.mark.parametrize("error", [UnavailableError("gone"), asyncio.CancelledError()])
async def test_reports_that_could_not_be_written_are_kept_for_later(
    market: Market, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    user = await market.person()
    devices = [await device_of(market, user) for _ in range(3)]
    for device in devices:
        market.devices.heartbeat(device, {"gpu_name": "old"})
    monkeypatch.setattr(market.store, "write", failing_once(market.store, error))
    with pytest.raises(type(error)):
        await market.devices.reports.flush()
    market.devices.heartbeat(devices[0], {"gpu_name": "new"})
    await market.devices.reports.flush()
    monkeypatch.undo()
    stored = {
        device.id: device for device in await restarted(market).page(user, before="", limit=9)
    }
    assert [stored[device.id].gpu_name for device in devices] == ["new", "old", "old"]


@pytest.mark.both_engines
async def test_the_writer_outlives_the_stores_failures_and_says_so_once(
    market: Market, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    user = await market.person()
    device = await device_of(market, user)
    failing = True
    failures = 0
    write = market.store.write

    async def sometimes(*args: Any, **kwargs: Any) -> Any:
        nonlocal failures
        if failing:
            failures += 1
            raise UnavailableError("gone")
        return await write(*args, **kwargs)

    monkeypatch.setattr(market.store, "write", sometimes)
    market.devices.reports.pace = DevicePace(write_seconds=0.0)
    caplog.set_level(logging.ERROR, "devices")
    writing = asyncio.create_task(market.devices.reports.run())
    market.devices.heartbeat(device, {"gpu_name": "kept"})
    await until(lambda: failures >= 3)
    assert len(caplog.records) == 1
    failing = False

    async def written() -> bool:
        return (await only(restarted(market), user)).gpu_name == "kept"

    await until(written)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    monkeypatch.undo()


@pytest.mark.both_engines
async def test_an_older_report_never_overwrites_a_newer_one(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two flushes at once, as the writer and the taking back of jobs make them."""
    user = await market.person()
    device = await device_of(market, user)
    gate = Gate(market.store.write)
    monkeypatch.setattr(market.store, "write", gate)
    market.devices.heartbeat(device, {"gpu_name": "old"})
    first = asyncio.create_task(market.devices.reports.flush())
    await gate.held.wait()
    market.devices.heartbeat(device, {"gpu_name": "new"})
    second = asyncio.create_task(market.devices.reports.flush())
    for _ in range(5):
        await asyncio.sleep(0)
    if gate.calls > 1:
        await second
    gate.open()
    await asyncio.gather(first, second)
    monkeypatch.undo()
    assert (await only(restarted(market), user)).gpu_name == "new"


@pytest.mark.both_engines
async def test_a_flush_waits_for_reports_that_are_being_written(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller of a flush reads the store next, and would miss them."""
    user = await market.person()
    device = await device_of(market, user)
    gate = Gate(market.store.write)
    monkeypatch.setattr(market.store, "write", gate)
    market.devices.heartbeat(device, {})
    first = asyncio.create_task(market.devices.reports.flush())
    await gate.held.wait()
    second = asyncio.create_task(market.devices.reports.flush())
    for _ in range(5):
        await asyncio.sleep(0)
    returned_early = second.done()
    gate.open()
    await asyncio.gather(first, second)
    monkeypatch.undo()
    assert not returned_early


async def test_devices_of_others_are_not_listed(market: Market) -> None:
    user, other = await market.person(), await market.person()
    mine = await device_of(market, user)
    await device_of(market, other)
    assert [device.id for device in await market.devices.page(user, before="", limit=10)] == [
        mine.id
    ]


async def test_pages_follow_each_other_newest_first(market: Market) -> None:
    user = await market.person()
    made_in_order = [(await device_of(market, user)).id for _ in range(5)]
    first = await market.devices.page(user, before="", limit=3)
    rest = await market.devices.page(user, before=first[-1].id, limit=3)
    assert [device.id for device in (*first, *rest)] == made_in_order[::-1]


async def told(market: Market, user: str) -> list[str]:
    types = [each for each in await types_of(market, user) if each.startswith("device.")]
    return [each for each in types if each != "device.created"]


async def test_an_owner_is_notified_once_that_a_device_comes_and_leaves(market: Market) -> None:
    user = await market.person()
    device = await device_of(market, user)
    for _ in range(3):
        market.devices.heartbeat(device, {})
        await market.devices.reports.flush()
        market.clock.now += 30
    assert await told(market, user) == ["device.online"]
    for _ in range(2):
        await market.devices.offline(device)
        await market.devices.reports.flush()
    assert await told(market, user) == ["device.online", "device.offline"]
    market.devices.heartbeat(device, {})
    await market.devices.reports.flush()
    assert (await told(market, user))[2:] == ["device.online"]
    [said_of, _] = await said(market, user, "device.online")
    assert said_of == {"device_id": device.id, "name": device.name}


@pytest.mark.both_engines
async def test_an_owner_is_notified_once_that_a_device_is_silent(market: Market) -> None:
    user = await market.person()
    device, other = await device_of(market, user), await device_of(market, user)
    for each in (device, other):
        market.devices.heartbeat(each, {})
    await market.devices.reports.flush()
    silent = ONLINE_SECONDS + LATE_SECONDS
    assert await market.devices.tell_silent(silent) == 0
    market.clock.now += silent + 1
    market.devices.heartbeat(other, {})
    await market.devices.reports.flush()
    assert await market.devices.tell_silent(silent - 1) == 0  # too short for reports
    assert await market.devices.tell_silent(silent) == 1
    assert await market.devices.tell_silent(silent) == 0
    [row] = await rows_of(market, user, "device.offline")
    assert row.subject_id == device.id


async def test_an_owner_is_notified_once_that_a_token_was_revoked(market: Market) -> None:
    user = await market.person()
    device = await device_of(market, user)
    market.devices.heartbeat(device, {})
    await market.devices.reports.flush()
    for _ in range(2):
        await market.devices.revoke(user, device.id)
    market.clock.now += 10_000
    assert await market.devices.tell_silent(10_000) == 0
    assert await told(market, user) == ["device.online", "device.revoked"]


@pytest.mark.both_engines
async def test_of_two_concurrent_revocations_of_a_token_one_notifies(market: Market) -> None:
    user = await market.person()
    device = await device_of(market, user)
    await asyncio.gather(*(market.devices.revoke(user, device.id) for _ in range(5)))
    assert await told(market, user) == ["device.revoked"]
