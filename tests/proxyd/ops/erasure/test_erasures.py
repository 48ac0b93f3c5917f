"""The record of erasures outlives crashes, and each machine finishes what the database has."""

import gzip
import os
from pathlib import Path

import pytest
from support.market.leaving import tools
from support.market.market import Market

from market.erasure import erasing
from proxyd.ops.access_log.access_files import HOUR_SECONDS, name_of
from proxyd.ops.erasure.access_blanking import blank
from proxyd.ops.erasure.erasures import ACCESS_AFTER_SECONDS, ErasureLog, Erasures, Line


def test_a_line_that_a_crash_has_cut_off_harms_no_other(tmp_path: Path) -> None:
    log = ErasureLog(tmp_path / "erasures.log")
    assert log.read() == ({}, set())
    log.add([Line(user="a", at=1), Line(user="b", at=2)])
    log.path.write_bytes(log.path.read_bytes()[:-5])
    log.add([Line(user="c", at=3), Line(access="a")])
    assert log.read() == ({"a": 1, "c": 3}, {"a"})
    assert log.path.stat().st_mode & 0o777 == 0o600


async def erased(market: Market) -> str:
    user = await market.person()
    await market.store.write(erasing.erase, market.context, tools(market), user, waives=False)
    return user


async def test_a_look_after_a_crash_finishes_what_the_database_has(
    market: Market, tmp_path: Path
) -> None:
    path = tmp_path / "erasures.log"
    first = await erased(market)
    machine = Erasures(market.store, path, None)
    assert await machine.look(market.clock.now) == 1
    assert await machine.look(market.clock.now) == 0
    second = await erased(market)
    # Another process of the machine, after a crash of the first one.
    assert await Erasures(market.store, path, None).look(market.clock.now) == 1
    assert ErasureLog(path).read()[0].keys() == {first, second}
    assert await machine.look(market.clock.now) == 0


async def test_a_database_in_use_is_scrubbed_by_a_later_look(
    market: Market, tmp_path: Path
) -> None:
    await erased(market)
    scrubbed = iter([False, True])

    async def scrub(_: object) -> bool:
        return next(scrubbed)

    machine = Erasures(market.store, tmp_path / "erasures.log", None)
    machine._store.scrub = scrub  # type: ignore[method-assign]
    assert await machine.look(market.clock.now) == 0
    assert not (tmp_path / "erasures.log").exists()
    assert await machine.look(market.clock.now) == 1


async def test_access_records_are_blank_once_their_hours_are_closed(
    market: Market, tmp_path: Path
) -> None:
    user = await market.person(usd="1")
    bought = await market.bandwidth.buy(user, quota_bytes=1, price_per_gb=None)
    await market.bandwidth.end(user, bought.session_id)
    await market.store.write(erasing.erase, market.context, tools(market), user, waives=True)
    folder, now = tmp_path / "access", market.clock.now
    folder.mkdir()
    path = folder / f"{name_of(now // HOUR_SECONDS - 1)}.gz"
    line = f'{{"event":"ended","session":"{bought.session_id}","client":"192.0.2.0/24"}}\n'
    path.write_bytes(gzip.compress(line.encode()))
    machine = Erasures(market.store, tmp_path / "erasures.log", folder)
    await machine.look(now)
    assert b"192.0.2" in gzip.decompress(path.read_bytes())
    await machine.look(now + ACCESS_AFTER_SECONDS)
    assert b"192.0.2" not in gzip.decompress(path.read_bytes())
    assert ErasureLog(tmp_path / "erasures.log").read()[1] == {user}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
def test_files_that_root_writes_belong_to_the_user_of_the_service(tmp_path: Path) -> None:
    service = 12_345
    os.chown(tmp_path, service, service)
    log = ErasureLog(tmp_path / "erasures.log")
    log.add([Line(user="a", at=1)])
    packed = tmp_path / f"{name_of(1)}.gz"
    packed.write_bytes(gzip.compress(b'{"session":"s","client":"192.0.2.0/24"}\n'))
    os.chown(packed, service, service)
    assert blank(tmp_path, frozenset({"s"}), 3 * HOUR_SECONDS) == 1
    assert {path.stat().st_uid for path in (log.path, packed)} == {service}
