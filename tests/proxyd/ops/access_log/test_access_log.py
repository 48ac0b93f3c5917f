"""Records of proxied connections: their content, their deletion, and a disk that is slow."""

import gzip
import json
import os
import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.base.waiting import until, until_true
from support.clients.datagrams import associated, peer
from support.clients.socks import Client, tunnel
from support.daemons.service import running_in
from support.exits.device import running_with_agent
from support.targets import targets

from proxyd.access_records import Access, Reached
from proxyd.ops.access_log.access_files import PACKED, pack
from proxyd.ops.access_log.access_log import AccessLog, CannotRecordError

ONE = Access(7, "session", "198.51.100.7", "example.com", 443, 10, 20, 1.25, "ended")
BEGUN = Reached(
    7, "session", "198.51.100.7", "tcp", "example.com", 443, ("203.0.113.9",), 51_812, "", "", ""
)
DAY = 86_400
HOUR = 3600
NOON = 1_769_860_800


def opened(folder: Path, now: list[int], **changes: Any) -> AccessLog:
    """Open the log of a process that compresses no file: its files stay as they were written."""
    wanted = {"target": "host", "keep_days": 2, "key": b"k" * 32, "now": lambda: now[0]}
    return AccessLog(folder, **{"client": "none", "process": 1, **wanted, **changes})


def lines(folder: Path, pattern: str = "*") -> list[dict[str, Any]]:
    """Return all lines of the files, the earliest first."""
    return [
        json.loads(line)
        for path in sorted(folder.glob(pattern))
        for line in path.read_text().splitlines()
    ]


def records(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of ended connections."""
    return [each for each in lines(folder) if each["event"] == "ended"]


def events(found: list[dict[str, Any]]) -> list[str]:
    return [each["event"] for each in found]


async def test_each_proxied_connection_is_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "access"
    async with running_in(
        tmp_path, access_log={"folder": str(folder), "target": "host", "client": "full"}
    ) as service:
        bought = await service.buy(await service.person(usd="10"))
        async with targets.echo() as target:
            for end in ("ended", "reset"):
                client = await tunnel(
                    service.proxy_port, bought.username, bought.password, "127.0.0.1", target.port
                )
                await client.send(b"hello")
                await client.receive(5)
                if end == "ended":
                    client.end()
                    await client.rest()
                    await client.close()
                else:
                    client.reset()
                await until(lambda: service.daemon.gateway.connections == 0)
            refused = await Client.open(service.proxy_port)
            await refused.log_in(bought.username, bought.password)
            assert await refused.connect("127.0.0.1", 25) == 2
            await refused.close()
            await until(lambda: service.daemon.gateway.connections == 0)
    found = records(folder)
    assert [each["reason"] for each in found] == ["ended", "reset", "not_allowed"]
    assert [(each["bytes_up"], each["bytes_down"]) for each in found] == [(5, 5), (5, 5), (0, 0)]
    assert {each["session"] for each in found} == {bought.id}
    assert {each["host"] for each in found} == {"127.0.0.1"}
    assert [each["connection"] for each in found] == [1, 2, 3]
    assert {each["client"] for each in found} == {"127.0.0.1"}
    assert all(each["started"] <= each["time"] for each in found)
    assert bought.password not in json.dumps(found)


@pytest.mark.parametrize("way", [running_in, running_with_agent])
async def test_each_destination_of_datagrams_is_recorded_once_an_hour(
    tmp_path: Path, way: Any
) -> None:
    folder = tmp_path / "access"
    log = {"folder": str(folder), "target": "host", "client": "none"}
    async with way(tmp_path, access_log=log) as service:
        bought = await service.buy(await service.person(usd="10"))
        with peer() as one, peer() as two:
            async with associated(service, bought) as client:
                for _ in range(3):
                    await client.exchange(one, b"up", b"down")
                    await client.exchange(two, b"up", b"down")
                service.daemon.helpers.access_log.hour.number += 1
                await client.exchange(two, b"up", b"down")
            ports = [one.address[1], two.address[1], two.address[1]]
        await until(lambda: service.daemon.gateway.connections == 0)
    found = lines(folder)
    sent = [each for each in found if each["event"] == "sent"]
    assert [(each["host"], each["port"]) for each in sent] == [
        ("127.0.0.1", port) for port in ports
    ]
    assert {each["session"] for each in sent} == {bought.id}
    [end] = [each for each in found if each["event"] == "ended"]
    assert {each.get("exit") for each in sent} == {end.get("exit")}
    assert {each["connection"] for each in sent} == {end["connection"]}
    if way is running_in:
        assert len({each["source_port"] for each in sent}) == 1


@pytest.mark.parametrize(
    ("client", "address", "told"),
    [
        ("none", "198.51.100.7", None),
        ("full", "198.51.100.7", "198.51.100.7"),
        ("network", "198.51.100.7", "198.51.100.0/24"),
        ("full", "2001:db8:1:2::3", "2001:db8:1:2::3"),
        ("network", "2001:db8:1:2::3", "2001:db8:1::/48"),
        ("network", "fe80::1%lo", "fe80::/48"),
    ],
)
def test_a_client_is_recorded_as_configured(
    tmp_path: Path, client: str, address: str, told: str | None
) -> None:
    log = opened(tmp_path, [NOON], client=client)
    log.put(replace(ONE, client=address))
    log.close()
    (found,) = records(tmp_path)
    assert found.get("client") == told
    assert (address in json.dumps(found)) is (client == "full")


def test_a_record_has_the_time_of_the_clients_connection(tmp_path: Path) -> None:
    log = opened(tmp_path, [NOON])
    log.put(replace(ONE, seconds=3_600.25))
    log.put(replace(ONE, seconds=0.003))
    log.close()
    long, short = records(tmp_path)
    assert (long["started"], long["time"]) == ("2026-01-31T11:00:00Z", "2026-01-31T12:00:00Z")
    assert long["seconds"] == 3_600.25
    assert short["started"] == short["time"]  # and not in the second before


@pytest.mark.parametrize(
    ("target", "keys"),
    [
        ("host", {"host", "addresses"}),
        ("hash", {"host_hash", "address_hashes"}),
        ("none", set()),
    ],
)
def test_a_target_is_recorded_hashed_or_left_out(
    tmp_path: Path, target: str, keys: set[str]
) -> None:
    log = opened(tmp_path, [NOON], target=target)
    log.put(BEGUN)
    log.put(ONE)
    log.close()
    (found,) = records(tmp_path)
    assert set(found) & {"host", "host_hash", "addresses", "address_hashes"} == keys
    for secret in ("example.com", "203.0.113.9"):
        assert (secret in json.dumps(found)) is (target == "host")


def test_the_hash_needs_the_key(tmp_path: Path) -> None:
    hashes = []
    for folder, key in (("a", b"1" * 32), ("b", b"1" * 32), ("c", b"2" * 32)):
        log = opened(tmp_path / folder, [NOON], target="hash", key=key)
        log.put(ONE)
        log.close()
        hashes.append(records(tmp_path / folder)[0]["host_hash"])
    assert hashes[0] == hashes[1] != hashes[2]


def test_an_hour_has_a_file_and_old_ones_go(tmp_path: Path) -> None:
    now = [NOON]
    (tmp_path / "access-notes.txt").write_text("mine")
    of_a_day = tmp_path / "access-2026-01-28.jsonl"  # as earlier versions named them
    of_a_day.write_text("{}\n")
    log = opened(tmp_path, now)
    assert of_a_day.exists()  # after a gap the clock is in doubt for a day
    for done in range(4):
        log.put(ONE)
        until_true(lambda done=done: log.written == done + 1, "it is written")
        now[0] += DAY
    log.close()
    assert not of_a_day.exists()
    hours = [datetime.fromtimestamp(NOON + each * DAY, UTC) for each in (2, 3, 4)]
    kept = sorted(tmp_path.glob("access-*.jsonl*"))
    assert [each.name[: len("access-2026-01-31T12")] for each in kept] == [
        f"access-{hour:%Y-%m-%dT%H}" for hour in hours
    ]
    assert (tmp_path / "access-notes.txt").exists()
    assert {stat.S_IMODE(each.stat().st_mode) for each in kept} == {0o600}


def test_old_files_go_while_no_connection_comes(tmp_path: Path) -> None:
    now = [NOON]
    log = opened(tmp_path, now, idle_seconds=0.01)
    log.put(ONE)
    until_true(lambda: log.written == 1, "it is written")
    for _ in range(4):
        now[0] += DAY
        name = f"access-{datetime.fromtimestamp(now[0], UTC):%Y-%m-%dT%H}.jsonl"
        until_true((tmp_path / name).exists, "the file of the hour is there")
    until_true(lambda: not list(tmp_path.glob("access-2026-01-31*")), "the old file is gone")
    log.put(ONE)
    log.close()
    assert events(lines(tmp_path, name)) == ["hour", "ended"]


def test_a_clock_that_jumps_forward_deletes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [NOON]
    opened(tmp_path, now).close()
    for hours in range(24):  # of a wrong clock
        now[0] = NOON + 365 * DAY + hours * HOUR
        opened(tmp_path, now).close()
    assert list(tmp_path.glob("access-2026-01-31T12*"))
    assert "files are deleted a day later" in caplog.text
    now[0] = NOON + HOUR  # it is corrected
    opened(tmp_path, now).close()
    assert list(tmp_path.glob("access-2026-01-31T12*"))
    now[0] = NOON + 366 * DAY  # or it was right, and a day confirms it
    (tmp_path / "access-2026-01-31T12.jsonl.gz.partial").touch()  # of a killed process
    opened(tmp_path, now).close()
    assert not list(tmp_path.glob("access-2026-01-31T12*"))


def test_an_old_file_that_cannot_be_deleted_costs_no_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "access-2026-01-28.jsonl").mkdir()  # as a file that only root may delete
    for day in (29, 30):
        (tmp_path / f"access-2026-01-{day}.jsonl").touch()
    now = [NOON]
    log = opened(tmp_path, now)
    log.put(BEGUN)
    until_true(lambda: log._writer._open, "it is open")
    now[0] += HOUR
    log.put(replace(ONE, connection=9))
    log.close()
    assert events(lines(tmp_path, "*T13.jsonl")) == ["hour", "still", "ended"]
    assert log.dropped == 0
    assert "access-2026-01-28.jsonl stays: " in caplog.text


def test_without_a_thread_for_compression_records_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [NOON]
    log = opened(tmp_path, now, process=None)

    class Refused:
        def __init__(self, **_: object) -> None:
            """Take the arguments of a thread."""

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    packer = log._writer._packer
    until_true(lambda: not (packer and packer.is_busy), "nothing is compressed now")
    monkeypatch.setattr("proxyd.ops.access_log.access_files.threading.Thread", Refused)
    now[0] += HOUR
    log.put(ONE)
    log.close()
    assert events(lines(tmp_path, "*T13.jsonl")) == ["hour", "ended"]
    assert "not compressed: can't start new thread" in caplog.text


def test_a_name_has_one_hash_however_it_is_written(tmp_path: Path) -> None:
    log = opened(tmp_path, [NOON], target="hash")
    for host in ("example.com", "Example.COM"):
        log.put(replace(ONE, host=host))
    log.close()
    first, second = records(tmp_path)
    assert first["host_hash"] == second["host_hash"]


def test_a_disk_that_does_not_follow_costs_records_and_nothing_else(tmp_path: Path) -> None:
    now = [NOON]
    log = opened(tmp_path, now, waiting_max=3)
    fifo = tmp_path / "access-2026-02-01T12.jsonl"
    os.mkfifo(fifo)  # opening it waits, as a disk that hangs
    log.put(BEGUN)
    until_true(lambda: log._writer._open, "it is open")
    now[0] += DAY
    log.put(replace(ONE, connection=8))
    until_true(lambda: not log._queue.waiting, "the writer is stuck")
    for _ in range(8):
        log.put(ONE)
    assert log.dropped == 5
    with fifo.open("rb") as file:
        log.close()
        text = file.read()
    assert log.written == 4
    *_, lost = [json.loads(line) for line in text.splitlines()]
    assert (lost["event"], lost["lines"]) == ("lost", 5)


def test_ends_that_are_lost_leave_no_connection_open_for_ever(tmp_path: Path) -> None:
    now = [NOON]
    log = opened(tmp_path, now, waiting_max=1)
    log.put(BEGUN)
    until_true(lambda: log._writer._open, "it is open")
    log.put(replace(BEGUN, connection=8))
    log.put(ONE)  # dropped: one record waits already
    assert log.dropped == 1
    until_true(lambda: not log._writer._open, "what is open is not known any more")
    now[0] += HOUR
    log.close()
    [hour] = lines(tmp_path, "*T13.jsonl")
    assert (hour["event"], hour["open"], hour["lost"]) == ("hour", 0, 1)


def test_an_impossible_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotRecordError, match=r"the access log in .*: "):
        opened(tmp_path / "file", [NOON])


def test_lines_of_several_processes_in_one_file_are_whole(tmp_path: Path) -> None:
    logs = [opened(tmp_path, [NOON], process=number) for number in range(4)]
    long = replace(ONE, host="long." * 40 + "example.com")
    for number in range(2_000):
        for log in logs:
            log.put(replace(long, connection=number))
    for log in logs:
        log.close()
    assert len([each for each in lines(tmp_path) if each["event"] == "hour"]) == 4
    found = records(tmp_path)
    assert len(found) == 8_000
    for number in range(4):
        own = [each["connection"] for each in found if each["process"] == number]
        assert own == list(range(2_000))


def test_lines_that_a_full_disk_does_not_take_are_counted_as_dropped(tmp_path: Path) -> None:
    log = opened(tmp_path, [NOON])
    os.dup2(os.open("/dev/full", os.O_WRONLY), log._writer.files._descriptor)
    for _ in range(3):
        log.put(ONE)
    until_true(lambda: log.dropped == 3, "they are dropped")
    log.close()
    assert log.written == 0


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Have the kernel write a part of the bytes beyond the file's size, and then none."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("meanwhile", ["goes on", "is restarted"])
def test_half_a_line_is_all_that_a_full_disk_spoils(tmp_path: Path, meanwhile: str) -> None:
    log = opened(tmp_path, [NOON])
    log.put(ONE)
    until_true(lambda: log.written == 1, "it is written")
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    head, _ = path.read_bytes().splitlines(keepends=True)
    with files_of_at_most(2 * size - len(head) + 10):
        for number in range(1, 4):
            log.put(replace(ONE, connection=number))
        until_true(lambda: log.written + log.dropped == 4, "the disk is full")
        if meanwhile == "is restarted":
            log.close()
    assert (log.written, log.dropped) == (2, 2)
    if meanwhile == "is restarted":
        log = opened(tmp_path, [NOON])
    log.put(replace(ONE, connection=8))
    log.put(replace(ONE, connection=9))
    log.close()
    written = path.read_bytes().splitlines()
    whole = [json.loads(line) for line in written if line.endswith(b"}")]
    assert [each["connection"] for each in whole if each["event"] == "ended"] == [7, 1, 8, 9]
    [half] = [line for line in written if not line.endswith(b"}")]
    assert len(half) == 10


def test_an_hour_has_a_line_for_each_connection_that_is_open(tmp_path: Path) -> None:
    now = [NOON]
    log = opened(tmp_path, now)
    log.put(BEGUN)
    until_true(lambda: log._writer._open, "it is open")
    now[0] += 10
    until_true(lambda: "began" in events(lines(tmp_path)), "its beginning is written")
    log.put(replace(BEGUN, connection=8))
    log.put(replace(ONE, connection=8, seconds=0.5))
    now[0] = NOON + 3 * HOUR + 5
    log.put(replace(ONE, seconds=3 * HOUR + 5))
    log.close()
    first, last = lines(tmp_path, "*T12.jsonl"), lines(tmp_path, "*T15.jsonl")
    assert events(first) == ["hour", "began", "ended"]
    assert events(last) == ["hour", "still", "ended"]
    begun, short, still, end = first[1], first[2], last[1], last[2]
    assert short["connection"] == 8
    assert begun["started"] == still["started"] == end["started"] == "2026-01-31T12:00:00Z"
    assert still["time"] == "2026-01-31T15:00:05Z"
    for each in (begun, still, end):
        shown = {name: each[name] for name in ("protocol", "addresses", "source_port", "port")}
        assert shown == {
            "protocol": "tcp",
            "addresses": ["203.0.113.9"],
            "source_port": 51_812,
            "port": 443,
        }
        assert each["run"] == first[0]["run"]


def test_a_connection_through_an_exit_names_the_device_and_the_seen_address(tmp_path: Path) -> None:
    log = opened(tmp_path, [NOON])
    log.put(replace(BEGUN, exit="device", exit_address="192.0.2.1", seen_address="2001:db8::1"))
    log.put(ONE)
    log.put(replace(ONE, connection=8, reason="refused", tried=(("device", "192.0.2.1"),)))
    log.close()
    carried, refused = records(tmp_path)
    assert (carried["exit"], carried["exit_address"]) == ("device", "192.0.2.1")
    assert carried["seen_address"] == "2001:db8::1"
    assert refused["tried"] == [["device", "192.0.2.1"]]


def test_closed_hours_are_compressed_and_late_lines_are_kept(tmp_path: Path) -> None:
    now = [NOON]
    log = opened(tmp_path, now)
    log.put(ONE)
    until_true(lambda: log.written == 1, "it is written")
    pack(tmp_path, NOON + HOUR)
    (plain,) = tmp_path.iterdir()  # an hour that is just over may still get lines
    pack(tmp_path, NOON + 2 * HOUR)
    (packed,) = tmp_path.iterdir()
    assert packed.name == "access-2026-01-31T12" + PACKED
    assert stat.S_IMODE(packed.stat().st_mode) == 0o600
    log.put(replace(ONE, connection=8))  # by a process that stood still for an hour
    until_true(lambda: log.written == 2, "it is written")
    assert plain.exists()
    pack(tmp_path, NOON + 2 * HOUR)
    with gzip.open(packed) as file:
        kept = [json.loads(line) for line in file]
    assert [each["connection"] for each in kept if each["event"] == "ended"] == [7, 8]
    log.close()


def test_a_file_that_is_deleted_while_it_is_compressed_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path, [NOON]).close()
    (plain,) = tmp_path.iterdir()
    monkeypatch.setattr(os, "fsync", lambda _: plain.unlink())
    pack(tmp_path, NOON + 2 * HOUR)
    assert list(tmp_path.iterdir()) == []


def test_a_start_compresses_the_hours_before_it(tmp_path: Path) -> None:
    log = opened(tmp_path, [NOON])
    log.close()
    opened(tmp_path, [NOON + 2 * HOUR], process=None).close()
    until_true(lambda: [*tmp_path.glob("*.gz")] and len([*tmp_path.iterdir()]) == 2, "compressed")
