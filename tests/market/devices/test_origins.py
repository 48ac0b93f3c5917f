"""The addresses of devices: rows go on, end, are bounded and deleted, and lead to devices."""

import asyncio

import pytest
from support.market.jobs import device_of
from support.market.market import Market
from support.market.staff import ROOT

from market.devices.origins import (
    DAY_SECONDS,
    GAP_SECONDS,
    RENEW_SECONDS,
    ROWS_PER_DAY,
    TURN_MAX,
    DeviceOrigins,
)
from market.staff.abuse import exit_use
from market.staff.abuse.exit_use import Found, Question
from market.staff.finding import search
from storage.devices import origins
from storage.devices.origins import SightingRow
from storage.engines.errors import StoreError
from storage.engines.store import Transaction

A, B = "203.0.113.9", "2001:db8::1"
B_NETWORK = "2001:db8::/64"


async def rows(market: Market) -> list[tuple[str, str, int, int]]:
    async def read(tx: Transaction) -> list[SightingRow]:
        return await tx.all(
            SightingRow,
            "SELECT device_id, address, began_at, ended_at, 0 FROM device_origins"
            " ORDER BY began_at, address",
        )

    return [row[:4] for row in await market.store.read(read)]


@pytest.mark.both_engines
async def test_a_row_goes_on_while_a_device_is_there(market: Market) -> None:
    seen, now = market.devices.origins, market.clock.now
    device = (await device_of(market, await market.person())).id
    seen.saw(device, A)
    seen.saw(device, f"::ffff:{A}")  # another spelling of it
    seen.saw(device, f"{B}%eth0")
    seen.saw(device, "no address")
    seen.saw("no device", A)
    await seen.flush()
    assert await rows(market) == [(device, B_NETWORK, now, now), (device, A, now, now)]
    seen.watch(lambda: [(device, A)])
    market.clock.now += RENEW_SECONDS
    await seen.flush()
    market.clock.now += 1
    seen.left(device, A)
    await seen.flush()
    end = now + RENEW_SECONDS + 1
    assert await rows(market) == [(device, B_NETWORK, now, now), (device, A, now, end)]
    # Another node, or the daemon after a crash, goes on with the row; after a gap there is another.
    other = DeviceOrigins(market.context, 90)
    market.clock.now += GAP_SECONDS
    other.saw(device, A)
    await other.flush()
    again = market.clock.now
    market.clock.now += GAP_SECONDS + 1
    other.saw(device, A)
    await other.flush()
    last = market.clock.now
    assert await rows(market) == [
        (device, B_NETWORK, now, now),
        (device, A, now, again),
        (device, A, last, last),
    ]
    market.clock.now = again + 90 * DAY_SECONDS
    assert await seen.delete_old() == 1  # the one of B
    market.clock.now += 1
    assert await seen.delete_old() == 1
    assert await rows(market) == [(device, A, last, last)]


async def test_a_device_has_a_number_of_rows_a_day(market: Market) -> None:
    market.clock.now -= market.clock.now % DAY_SECONDS
    seen, owner = market.devices.origins, await market.person()
    device, other = [(await device_of(market, owner)).id for _ in range(2)]
    for number in range(ROWS_PER_DAY + 5):
        seen.saw(device, f"198.51.100.{number}")
        if number == ROWS_PER_DAY // 2:
            await seen.flush()
    seen.saw(other, A)
    await seen.flush()
    assert len(await rows(market)) == ROWS_PER_DAY + 1
    market.clock.now += DAY_SECONDS
    seen.saw(device, A)
    await seen.flush()
    assert len(await rows(market)) == ROWS_PER_DAY + 2


async def test_memory_is_bounded_and_an_outage_loses_nothing(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = (await device_of(market, await market.person())).id
    seen = DeviceOrigins(market.context, 90, most=2)
    for address in ("198.51.100.1", A, B):
        seen.saw(device, address)
    assert list(seen._seen) == list(seen._due) == [(device, A), (device, B_NETWORK)]

    async def away(*_: object, **__: object) -> None:
        raise StoreError("away")

    with monkeypatch.context() as patch:
        patch.setattr(market.store, "write", away)
        with pytest.raises(StoreError):
            await seen.flush()
    await seen.flush()
    assert {row[1] for row in await rows(market)} == {A, B_NETWORK}
    off = DeviceOrigins(market.context, 0)
    off.saw(device, "198.51.100.2")
    await off.flush()
    assert len(await rows(market)) == 2
    assert await off.delete_old() == 0


async def test_a_device_with_many_addresses_pushes_out_no_other(market: Market) -> None:
    owner = await market.person()
    device, other = [(await device_of(market, owner)).id for _ in range(2)]
    seen = DeviceOrigins(market.context, 90, most=ROWS_PER_DAY + 1)
    seen.saw(other, A)
    for number in range(10 * ROWS_PER_DAY):
        seen.saw(device, f"2001:db8:0:{number:x}::1")
    assert len(seen._seen) == ROWS_PER_DAY + 1
    await seen.flush()
    assert (other, A) in {row[:2] for row in await rows(market)}
    market.clock.now += GAP_SECONDS + 1
    seen.saw(device, A)
    assert list(seen._seen) == [(device, A)], "what was written long ago is forgotten"
    await seen.flush()
    market.clock.now += GAP_SECONDS + 1
    await seen.flush()
    assert not seen._seen
    assert not seen._counts


async def test_an_address_leads_to_the_devices_that_were_there(market: Market) -> None:
    owner = await market.person()
    first, second = [(await device_of(market, owner)).id for _ in range(2)]
    seen, at = market.devices.origins, market.clock.now
    for device in (first, second):
        seen.saw(device, A)
        await seen.flush()
        market.clock.now += DAY_SECONDS
    [found] = await search.who(market.context, ROOT, A)
    assert found.by == "address of a device"
    assert [(hit.kind, hit.id, hit.user_id) for hit in found.hits] == [
        ("device", second, owner),
        ("device", first, owner),
    ]
    asked: list[Question] = []

    async def find(question: Question) -> Found:
        asked.append(question)
        return Found((), ())

    for moment, expected in ((at, (first,)), (at - 61, ()), (at + DAY_SECONDS, (second,))):
        answer = await exit_use.look_up(market.context, ROOT, Question(A, moment), None, find)
        assert answer.devices == asked[-1].devices == expected


async def test_the_addresses_of_one_household_are_one_row(market: Market) -> None:
    device = (await device_of(market, await market.person())).id
    seen = market.devices.origins
    for number in range(10 * ROWS_PER_DAY):
        seen.saw(device, f"2001:db8::{number:x}")
    seen.saw(device, A)
    await seen.flush()
    assert {row[:2] for row in await rows(market)} == {(device, B_NETWORK), (device, A)}
    for text in ("2001:db8::ffff", B_NETWORK):
        [found] = await search.who(market.context, ROOT, text)
        assert [hit.id for hit in found.hits] == [device]

    async def find(_: Question) -> Found:
        return Found((), ())

    question = Question("2001:db8::ffff", market.clock.now)
    answer = await exit_use.look_up(market.context, ROOT, question, None, find)
    assert answer.devices == (device,)


async def test_rows_of_before_with_a_whole_address_are_found(market: Market) -> None:
    device, now = (await device_of(market, await market.person())).id, market.clock.now
    row = SightingRow(device, B, now, now, 1)
    await market.store.write(origins.write, [row], gap_seconds=GAP_SECONDS, most=ROWS_PER_DAY)
    [found] = await search.who(market.context, ROOT, B)
    assert [hit.id for hit in found.hits] == [device]

    async def find(_: Question) -> Found:
        return Found((), ())

    answer = await exit_use.look_up(market.context, ROOT, Question(B, now), None, find)
    assert answer.devices == (device,)


async def test_addresses_that_memory_has_no_room_for_are_counted_and_logged(
    market: Market, caplog: pytest.LogCaptureFixture
) -> None:
    devices = [(await device_of(market, await market.person())).id for _ in range(4)]
    seen = DeviceOrigins(market.context, 90, most=2)
    for device in devices:
        seen.saw(device, A)
    assert seen.dropped == 2
    for _ in range(2):
        await seen.flush()
    warnings = [each.getMessage() for each in caplog.records if each.name == "devices"]
    assert warnings == ["addresses of devices: 2 dropped: more than 2 in memory"]
    seen.saw(devices[0], A)  # it pushes out a written one
    assert seen.dropped == 2


async def test_many_attached_devices_leave_turns_of_the_loop_to_others(market: Market) -> None:
    seen = DeviceOrigins(market.context, 90)
    seen.watch(lambda: [(f"device {number}", A) for number in range(3 * TURN_MAX)])
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    written: list[int] = []
    write = seen._write_some

    async def counted() -> None:
        written.append(turns)
        await write()

    seen._write_some = counted  # type: ignore[method-assign]
    await seen.flush()
    counting.cancel()
    assert written[0] >= 3
