"""Warnings about an access log that cannot answer a complaint, and the default of the log."""

from pathlib import Path

import pytest
from msgspec import structs

from config.settings import AccessLogSettings, Settings
from proxyd.ops.access_log.access_place import access_folder, access_key, access_key_file
from proxyd.ops.base.signing_key import SigningKeyError
from proxyd.ops.checks import accountability
from proxyd.ops.checks.accountability import unanswerable

EXITS = structs.replace(Settings().exits, host="127.0.0.1")


def settings_with(place: Path, *, exits: bool, **log: object) -> Settings:
    usual = Settings()
    return structs.replace(
        usual,
        storage=structs.replace(usual.storage, url=f"sqlite:///{place}/proxyd.db"),
        exits=EXITS if exits else usual.exits,
        access_log=structs.replace(AccessLogSettings(), **log),
    )


@pytest.mark.parametrize(
    ("exits", "log", "expected"),
    [
        (True, {}, "access"),
        (False, {}, None),
        (False, {"enabled": "on"}, "access"),
        (False, {"folder": "/var/log/records"}, "/var/log/records"),
        (True, {"folder": "/var/log/records", "enabled": "off"}, None),
    ],
)
def test_connections_are_recorded_where_exits_are(
    tmp_path: Path, *, exits: bool, log: dict[str, str], expected: str | None
) -> None:
    found = access_folder(settings_with(tmp_path, exits=exits, **log))
    assert found == (None if expected is None else tmp_path / expected)


def test_the_key_of_the_hashes_is_made_once_and_is_private(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, exits=True)
    file = access_key_file(settings)
    assert access_key(settings) == access_key(settings)
    assert (file, file.stat().st_mode & 0o777) == (tmp_path / "access.key", 0o600)
    assert access_key(settings_with(tmp_path, exits=True, target="host")) == b""
    file.write_text("short")
    with pytest.raises(SigningKeyError, match=r"the key of the access log .* has fewer than 32"):
        access_key(settings)


def test_on_postgresql_the_key_is_with_the_files_of_jobs(tmp_path: Path) -> None:
    usual = settings_with(tmp_path, exits=True)
    settings = structs.replace(
        usual,
        storage=structs.replace(usual.storage, url="postgresql://localhost/proxyd"),
        work=structs.replace(usual.work, folder=str(tmp_path / "work")),
    )
    assert access_key_file(settings) == tmp_path / "work" / "access.key"
    assert access_folder(settings) == tmp_path / "work" / "access"


@pytest.mark.parametrize(
    ("exits", "log", "words"),
    [
        (True, {"enabled": "off"}, ["access_log.enabled is off"]),
        (True, {"target": "none"}, ["access_log.target is none"]),
        (True, {"keep_days": 29}, ["access_log.keep_days is 29"]),
        (True, {"keep_days": 30}, []),
        (False, {"enabled": "off", "keep_days": 1}, []),
        (False, {"enabled": "on", "target": "none"}, []),
    ],
)
def test_a_log_that_cannot_answer_is_warned_of(
    tmp_path: Path, *, exits: bool, log: dict[str, object], words: list[str]
) -> None:
    found = list(unanswerable(settings_with(tmp_path, exits=exits, **log)))
    assert [line.partition(":")[0].partition(",")[0] for line in found] == words


def test_a_disk_that_is_nearly_full_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "access").mkdir()
    settings = settings_with(tmp_path, exits=True)
    monkeypatch.setattr(accountability, "FREE_MIN_SHARE", 0.0)
    assert list(unanswerable(settings)) == []
    monkeypatch.setattr(accountability, "FREE_MIN_SHARE", 1.0)
    assert "of the disk of" in next(unanswerable(settings))
