"""The search of the access log: one hour's file answers, also a compressed one."""

import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.base.waiting import until_true

from proxyd.access import DESTINATIONS_MAX, UNKNOWN_EXIT, Destinations, SessionLines
from proxyd.access_records import Access, Reached, Sent
from proxyd.ops.access_log import access_search
from proxyd.ops.access_log.access_files import pack
from proxyd.ops.access_log.access_lines import TargetHash
from proxyd.ops.access_log.access_log import AccessLog
from proxyd.ops.access_log.access_search import TURN_SECONDS, Searched, Wanted, compared, search

KEY = b"k" * 32
NOON = 1_769_860_800
HOUR = 3600
EXIT, OTHER_EXIT = "192.0.2.1", "192.0.2.2"
TARGET = "203.0.113.9"
ONE = Reached(1, "session", "198.51.100.7", "tcp", "a.test", 22, (TARGET,), 51_812, "d1", EXIT, "")
END = Access(1, "session", "198.51.100.7", "a.test", 22, 10, 20, 2.0, "ended", "d1", EXIT)


class Written:
    """An access log of a test, whose clock stands."""

    def __init__(self, folder: Path, process: int | None = None) -> None:
        self.folder = folder
        self.now = [NOON]
        self.passes = 0
        self.log = AccessLog(
            folder,
            target="hash",
            client="none",
            keep_days=90,
            key=KEY,
            now=self._now,
            process=process,
        )

    def _now(self) -> int:
        self.passes += threading.current_thread() is not threading.main_thread()
        return self.now[0]

    def put(self, at: int, *put: Access | Reached | Sent) -> None:
        until_true(lambda: not self.log._queue.waiting, "the thread has taken all")
        # The thread reads the clock at the end of a pass; no earlier pass may see the new time.
        passes = self.passes
        self.log._wake.set()
        until_true(lambda: self.passes > passes, "the thread has written all")
        self.now[0] = at
        for each in put:
            self.log.put(each)

    def close(self) -> None:
        self.log.close()


def asked(folder: Path, first: int, last: int, **changes: Any) -> Searched:
    usual = {
        "address": EXIT,
        "first": first,
        "last": last,
        "with_direct": False,
        "host": "",
        "hashed": TargetHash(KEY),
    }
    return search(folder, Wanted(**usual | changes))


def numbers(found: Searched) -> list[int]:
    return sorted(each.line.connection for each in found.carried)


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_connection_is_found_in_each_of_its_hours(tmp_path: Path, *, is_packed: bool) -> None:
    written = Written(tmp_path)
    written.put(NOON + 60, ONE, replace(ONE, connection=2, exit="d2", exit_address=OTHER_EXIT))
    written.put(NOON + 2 * HOUR + 60, replace(END, seconds=2.0 * HOUR))
    written.close()
    if is_packed:
        pack(tmp_path, NOON + 9 * HOUR)
        assert len(list(tmp_path.glob("*.gz"))) == 2
    for file in ("access-2026-01-31T12", "access-2026-01-31T14"):
        assert list(tmp_path.glob(f"{file}*"))
    for at in (NOON + 61, NOON + HOUR, NOON + 2 * HOUR + 30):
        found = asked(tmp_path, at, at)
        assert numbers(found) == [1]
    assert numbers(asked(tmp_path, NOON + HOUR + 60, NOON + HOUR + 60)) == []  # no file
    assert asked(tmp_path, NOON + HOUR, NOON + HOUR).missing == [(NOON + HOUR) // HOUR]
    assert numbers(asked(tmp_path, NOON, NOON + 59)) == []
    [carried] = asked(tmp_path, NOON + 2 * HOUR, NOON + 2 * HOUR + 10).carried
    assert (carried.started, carried.ended) == (NOON + 60, NOON + 2 * HOUR + 60)
    assert carried.line.source_port == 51_812


def test_the_exits_of_a_failed_dial_and_the_seen_address_count(tmp_path: Path) -> None:
    written = Written(tmp_path)
    failed = replace(END, exit="", exit_address="", reason="refused", bytes_up=0)
    written.put(
        NOON + 5,
        replace(failed, connection=3, tried=(("d2", OTHER_EXIT), ("d1", EXIT))),
        replace(failed, connection=4, tried=((UNKNOWN_EXIT, ""),)),
        replace(failed, connection=5, tried=((UNKNOWN_EXIT, ""),), host="b.test"),
        replace(failed, connection=6, reason="not_allowed", tried=(("d1", EXIT),)),
        replace(failed, connection=7),
        replace(ONE, connection=8, exit_address=OTHER_EXIT, seen_address=EXIT),
    )
    written.close()
    assert numbers(asked(tmp_path, NOON, NOON + 9)) == [3, 8]
    assert numbers(asked(tmp_path, NOON, NOON + 9, host="a.test")) == [3, 4, 8]
    assert 7 in numbers(asked(tmp_path, NOON, NOON + 9, with_direct=True))


def test_a_device_at_the_address_counts_unless_its_record_contradicts(tmp_path: Path) -> None:
    written = Written(tmp_path)
    of = replace(ONE, exit="d9", exit_address=OTHER_EXIT)
    failed = replace(END, exit="", exit_address="", reason="refused", bytes_up=0)
    written.put(
        NOON + 5,
        of,
        replace(of, connection=2, exit="d8"),
        replace(of, connection=3, seen_address="2001:db8::9"),
        replace(of, connection=4, seen_address="2001:db8::1"),
        replace(failed, connection=5, tried=(("d8", EXIT), ("d9", OTHER_EXIT))),
        replace(failed, connection=6, tried=(("d8", OTHER_EXIT),)),
    )
    written.close()
    asked_for = {"address": "2001:db8::1", "devices": frozenset({"d9"})}
    assert numbers(asked(tmp_path, NOON, NOON + 9, **asked_for)) == [1, 4, 5]
    # The same family: it was seen elsewhere before or after, but the record has its address.
    asked_for["address"] = "192.0.2.77"
    assert numbers(asked(tmp_path, NOON, NOON + 9, **asked_for)) == []


def test_a_connection_of_a_killed_process_ends_before_the_next_run(tmp_path: Path) -> None:
    killed = Written(tmp_path)
    killed.put(NOON + 5, ONE)
    killed.put(NOON + 20, replace(ONE, connection=2))
    killed.close()  # without the end of either
    again = AccessLog(
        tmp_path,
        target="hash",
        client="none",
        keep_days=90,
        key=KEY,
        now=lambda: NOON + 600,
    )
    again.close()
    assert numbers(asked(tmp_path, NOON + 300, NOON + 300)) == [1, 2]
    assert numbers(asked(tmp_path, NOON + 700, NOON + 700)) == []


def test_connections_to_other_destinations_are_counted_only(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.put(NOON + 5, ONE, replace(ONE, connection=2, addresses=("203.0.113.10",)))
    written.close()
    found = asked(tmp_path, NOON, NOON + 9, host=TARGET)
    assert (numbers(found), found.elsewhere) == ([1], 1)


@pytest.mark.parametrize(
    "host", ["::ffff:cb00:7109", "::ffff:203.0.113.9", "3405803785", "0xcb.28937", "0313.0.0161.9"]
)
def test_no_spelling_of_an_address_hides_a_connection(tmp_path: Path, host: str) -> None:
    written = Written(tmp_path)
    dial = replace(END, reason="refused", host=host, exit="", exit_address="", bytes_up=0)
    written.put(NOON + 5, replace(ONE, host=host, addresses=()))
    written.put(NOON + 6, replace(ONE, connection=2, addresses=("::ffff:203.0.113.9",)))
    written.put(NOON + 7, replace(dial, connection=3, tried=(("d1", EXIT),)))
    written.close()
    found = asked(tmp_path, NOON, NOON + 9, host=TARGET)
    assert (numbers(found), found.elsewhere) == ([1, 2, 3], 0)
    assert [compared(each.line, TARGET, TargetHash(KEY)) for each in found.carried] == [True] * 3


def test_lost_lines_and_bounds_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(tmp_path)
    written.put(NOON + 5, ONE, replace(ONE, connection=2))
    written.close()
    with next(tmp_path.glob("*T12.jsonl")).open("ab") as file:
        file.write(b'{"event":"lost","time":"2026-01-31T12:00:09Z","run":"a","lines":3}\n{"event')
    monkeypatch.setattr(access_search, "FOUND_MAX", 1)
    found = asked(tmp_path, NOON, NOON + 9)
    assert (len(found.carried), found.has_more, found.lost) == (1, True, 3)


@pytest.mark.parametrize(
    ("line", "host", "expected"),
    [
        ({"host": "a.test"}, "A.test", True),
        ({"host": "a.test"}, "b.test", False),
        ({"host": "a.test"}, TARGET, None),
        ({"host": TARGET}, TARGET, True),
        ({"host": TARGET}, "203.0.113.10", False),
        ({"host": TARGET}, "a.test", None),
        ({"host": "a.test", "addresses": (TARGET, "203.0.113.8")}, TARGET, True),
        ({"host": "a.test", "addresses": (TARGET,)}, "203.0.113.10", False),
        ({"host": "::ffff:cb00:7109"}, TARGET, True),
        ({"host_hash": TargetHash(KEY).of("::ffff:cb00:7109")}, TARGET, True),
        ({"host": "a.test", "addresses": ("::ffff:203.0.113.9",)}, TARGET, True),
        ({"host_hash": TargetHash(KEY).of("a.test"), "name": True}, "a.test", True),
        ({"host_hash": TargetHash(KEY).of("a.test"), "name": True}, TARGET, None),
        ({"host_hash": TargetHash(KEY).of(TARGET)}, "203.0.113.10", False),
        ({"host_hash": TargetHash(KEY).of(TARGET)}, "a.test", None),
        ({"protocol": "udp", "host_hash": TargetHash(KEY).of("")}, TARGET, None),
        ({}, TARGET, None),
    ],
)
def test_a_destination_is_compared_as_far_as_the_record_shows_it(
    line: dict[str, Any], host: str, expected: bool | None
) -> None:
    assert compared(access_search.Line(**line), host, TargetHash(KEY)) is expected


def test_a_damaged_file_is_reported_as_unreadable(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.put(NOON + 60, ONE, END)
    written.close()
    pack(tmp_path, NOON + 9 * HOUR)
    [damaged] = tmp_path.glob("*.gz")
    damaged.write_bytes(damaged.read_bytes()[:-12])
    with pytest.raises(OSError, match="damaged"):
        asked(tmp_path, NOON, NOON + 120)


UDP = replace(ONE, protocol="udp", host="", port=0, addresses=(), source_port=0)
END_OF_UDP = replace(END, host="", port=0)


def sent(host: str, port: int, others: int = 0, **changes: Any) -> Sent:
    return Sent(replace(UDP, host=host, port=port, **changes), others)


def test_datagrams_are_found_by_their_destination_in_each_hour(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.put(NOON, UDP, replace(UDP, connection=2), replace(UDP, connection=3))
    written.put(NOON + 100, sent(TARGET, 53), sent("a.test", 53, connection=3))
    assert written.log.hour.number == NOON // HOUR
    written.put(NOON + HOUR + 100, sent("198.51.100.99", 53))
    written.put(NOON + HOUR + 200, replace(END_OF_UDP, seconds=HOUR + 200.0))
    written.close()
    assert numbers(asked(tmp_path, NOON + 100, NOON + 100, host=TARGET)) == [1, 3]  # 3: a name
    assert asked(tmp_path, NOON + 100, NOON + 100, host=TARGET).elsewhere == 1
    assert numbers(asked(tmp_path, NOON, NOON, host=TARGET)) == []  # before the first
    later = NOON + HOUR + 100
    assert numbers(asked(tmp_path, later, later, host=TARGET)) == []
    [found] = asked(tmp_path, later, later, host="198.51.100.99").carried
    assert [each.port for each in found.sent] == [53]
    assert numbers(asked(tmp_path, NOON + 100, NOON + 100)) == [1, 2, 3]


def test_more_destinations_than_are_recorded_exclude_nothing(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.put(NOON, UDP, sent("", 0, 4))
    written.close()
    for host in (TARGET, ""):
        [found] = asked(tmp_path, NOON, NOON, host=host).carried
        assert (found.sent, found.is_whole) == ((), False)


def test_an_association_records_some_destinations_in_an_hour() -> None:
    put: list[Any] = []
    noted = Destinations(UDP, put.append, SessionLines(1_000))
    for number in range(DESTINATIONS_MAX + 5):
        noted.note(1, "host", number, 7)
    first, *_, last = put
    assert (first.reached.host, first.reached.source_port) == ("host", 7)
    assert [each.others for each in put[DESTINATIONS_MAX:]] == [1, 2, 4]
    assert last.reached.host == ""
    noted.note(2, "host", 1, 7)
    assert put[-1].others == 0


def test_new_associations_give_a_session_no_further_lines() -> None:
    """A buyer opens an association, sends to many targets, and opens the next one."""
    put: list[Any] = []
    lines = SessionLines(100)
    for connection in range(50):
        noted = Destinations(replace(UDP, connection=connection), put.append, lines)
        for port in range(DESTINATIONS_MAX):
            noted.note(1, "host", port, 7)
    assert sum(not each.others for each in put) == 100
    assert len(put) < 100 + 50 * 7  # each of the others has its count
    assert {each.reached.connection for each in put} == set(range(50))
    for hour, session in ((1, "another"), (2, UDP.session_id)):
        noted = Destinations(replace(UDP, session_id=session), put.append, lines)
        noted.note(hour, "host", 1, 7)
        assert put[-1].others == 0


def test_a_search_at_the_beginning_of_an_hour_reads_the_file_before(tmp_path: Path) -> None:
    """The thread has not turned the hour yet."""
    written = Written(tmp_path)
    written.put(NOON + 60, ONE)
    for _ in range(2):  # the line is written a second after the beginning
        written.put(NOON + 70)
    later = NOON + HOUR
    assert numbers(asked(tmp_path, later, later)) == [1]
    assert asked(tmp_path, later, later).missing == [later // HOUR]
    assert numbers(asked(tmp_path, later + TURN_SECONDS, later + TURN_SECONDS)) == []
    written.put(later + 1, replace(ONE, connection=2))
    written.close()
    assert numbers(asked(tmp_path, later, later)) == [1]
    assert numbers(asked(tmp_path, later, later + 1)) == [1, 2]
