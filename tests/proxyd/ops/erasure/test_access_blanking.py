"""The clients of erased users leave the access log, and no other record changes."""

import gzip
import json
from pathlib import Path

import pytest

from proxyd.ops.access_log.access_files import HOUR_SECONDS, name_of
from proxyd.ops.erasure.access_blanking import blank

HOUR = 500_000
MINE, OTHER = "01a3185c-mine", "01a3185c-other"


def line(session: str) -> bytes:
    fields = {"event": "ended", "session": session, "client": "192.0.2.0/24", "port": 443}
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def write(folder: Path, hour: int, *lines: bytes, packed: bool = True) -> Path:
    path = folder / name_of(hour)
    if packed:
        path = path.with_name(f"{path.name}.gz")
        path.write_bytes(gzip.compress(b"".join(lines)))
    else:
        path.write_bytes(b"".join(lines))
    path.chmod(0o600)
    return path


def test_only_the_clients_of_the_sessions_go(tmp_path: Path) -> None:
    half = line(MINE)[:-10] + b"\n"
    old = write(tmp_path, HOUR, line(MINE), line(OTHER), half)
    untouched = write(tmp_path, HOUR + 1, line(OTHER))
    later = write(tmp_path, HOUR + 9, line(MINE))
    plain = write(tmp_path, HOUR + 2, line(MINE), packed=False)
    before = {each: each.read_bytes() for each in (untouched, later, plain)}
    until = (HOUR + 5) * HOUR_SECONDS
    assert blank(tmp_path, frozenset({MINE}), until) == 1
    mine, other, rest = gzip.decompress(old.read_bytes()).splitlines(keepends=True)
    assert json.loads(mine) == {"event": "ended", "session": MINE, "port": 443}
    assert (other, rest) == (line(OTHER), b"\n")
    assert old.stat().st_mode & 0o777 == 0o600
    assert {each: each.read_bytes() for each in before} == before
    assert blank(tmp_path, frozenset({MINE}), until) == 0
    assert blank(tmp_path, frozenset(), until) == 0
    assert blank(tmp_path / "none", frozenset({MINE}), until) == 0
    assert sorted(tmp_path.iterdir()) == sorted([old, untouched, later, plain])


def test_an_hour_that_is_being_compressed_waits(tmp_path: Path) -> None:
    path = write(tmp_path, HOUR, line(MINE))
    write(tmp_path, HOUR, line(OTHER), packed=False)
    before = path.read_bytes()
    with pytest.raises(OSError, match="changed meanwhile"):
        blank(tmp_path, frozenset({MINE}), (HOUR + 5) * HOUR_SECONDS)
    assert path.read_bytes() == before
