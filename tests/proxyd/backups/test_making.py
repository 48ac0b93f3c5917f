"""A backup of everything is complete and private, and never harms an earlier one."""

import fcntl
import os
import stat
from pathlib import Path

import pytest
from msgspec import structs
from support.base.mounts import small_disk
from support.daemons.backed_up import settings_for
from support.daemons.process import funded

from config.settings import Settings
from proxyd.backups import files, manifest
from proxyd.backups.contents import TLS_SETTINGS
from proxyd.backups.folder import name_of
from proxyd.backups.making import Made, back_up_all
from proxyd.loop import clock
from storage.backups.errors import BackupError

MIB = 1024 * 1024


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = settings_for(tmp_path)
    funded(made.storage.url)
    return made


async def test_a_backup_has_everything_and_is_private(settings: Settings, tmp_path: Path) -> None:
    config = tmp_path / "proxyd.toml"
    config.write_text("# a comment\n")
    made = await back_up_all(settings, config, tmp_path / "backups")
    assert {entry.path for entry in made.manifest.files} == {
        "database/proxyd.db",
        "state/access.key",
        "state/signing.key",
        "state/exits.pem",
        "tls/api.tls_cert.pem",
        "tls/api.tls_key.pem",
        "settings/effective.toml",
        "settings/original.toml",
        "work/blobs/ab/abcd.1",
    }
    assert manifest.read(made.path) == made.manifest
    for entry in made.manifest.files:
        assert files.hashed(made.path / entry.path) == (entry.size, entry.sha256)
    modes = {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "backups").rglob("*")}
    assert modes == {0o600, 0o700}
    assert stat.S_IMODE((tmp_path / "backups").stat().st_mode) == 0o700
    assert "a mail password" in (made.path / "settings" / "effective.toml").read_text()


def test_each_setting_that_names_a_file_is_backed_up_or_left_out() -> None:
    """A new one goes into `contents`, or here."""
    left_out = {"access_log.folder", "geo.country", "geo.city", "geo.asn"}
    ends = ("_cert", "tls_key", "_file", "folder", "country", "city", "asn")
    named = {
        f"{section.name}.{each.name}"
        for section in structs.fields(Settings)
        for each in structs.fields(section.type)
        if each.type is str and each.name.endswith(ends)
    }
    copied = {f"{section}.{name}" for section, name in TLS_SETTINGS}
    assert named == copied | {"auth.signing_key_file", "work.folder"} | left_out


async def test_a_folder_that_others_may_read_is_refused(settings: Settings, tmp_path: Path) -> None:
    target = tmp_path / "open"
    target.mkdir(mode=0o750)
    with pytest.raises(BackupError, match="others may read this folder"):
        await back_up_all(settings, None, target)
    assert list(target.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(BackupError, match="not a folder"):
        await back_up_all(settings, None, tmp_path / "file")
    with pytest.raises(BackupError, match="No such file"):
        await back_up_all(settings, None, tmp_path / "none" / "backups")


async def test_a_missing_certificate_is_named(settings: Settings, tmp_path: Path) -> None:
    Path(settings.api.tls_key).unlink()
    with pytest.raises(BackupError, match=r"tls\.key: No such file"):
        await back_up_all(settings, None, tmp_path / "backups")
    assert list((tmp_path / "backups").iterdir()) == []


async def test_one_backup_at_a_time_and_leftovers_go(settings: Settings, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    target.mkdir(mode=0o700)
    leftover = target / "20200101T000000Z.partial"
    leftover.mkdir()
    other = target / "mine.partial"
    other.mkdir()
    descriptor = os.open(target, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(BackupError, match="another backup is being made"):
        await back_up_all(settings, None, target)
    assert leftover.exists()
    os.close(descriptor)
    made = await back_up_all(settings, None, target)
    assert set(target.iterdir()) == {made.path, other}


async def test_old_backups_are_removed_after_a_new_one(settings: Settings, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    target.mkdir(mode=0o700)
    for number in range(4):
        old = target / name_of(number)
        old.mkdir()
        (old / manifest.NAME).touch()
    foreign = target / name_of(9)
    foreign.mkdir()  # not a backup
    made = await back_up_all(settings, None, target, keep=2)
    assert made.removed == [name_of(0), name_of(1), name_of(2)]
    assert set(target.iterdir()) == {made.path, target / name_of(3), foreign}


async def test_a_new_backup_stays_after_the_clock_was_wrong(
    settings: Settings, tmp_path: Path
) -> None:
    target = tmp_path / "backups"
    target.mkdir(mode=0o700)
    late = [target / name_of(4_000_000_000 + number) for number in range(3)]
    for each in late:
        each.mkdir()
        (each / manifest.NAME).touch()
    made = await back_up_all(settings, None, target, keep=2)
    assert set(target.iterdir()) == {made.path, late[2]}
    made = await back_up_all(settings, None, tmp_path / "one", keep=1)
    assert list((tmp_path / "one").iterdir()) == [made.path]


def assert_alone(target: Path, first: Made) -> None:
    """Check that a backup is complete, and that nothing is beside it."""
    for entry in first.manifest.files:
        assert files.hashed(first.path / entry.path) == (entry.size, entry.sha256)
    assert list(target.iterdir()) == [first.path]


@pytest.mark.parametrize("is_foreseen", [True, False])
async def test_a_full_disk_leaves_the_earlier_backup(
    empty_postgres: str,
    engine: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_foreseen: bool,
) -> None:
    """One that shows before, and one that other programs fill while the backup is made."""
    settings = settings_for(tmp_path, empty_postgres if engine == "postgres" else "")
    funded(settings.storage.url)
    with small_disk(tmp_path / "disk", 48) as disk:
        target = disk / "backups"
        first = await back_up_all(settings, None, target)
        blob = Path(settings.work.folder) / "blobs" / "large"
        blob.write_bytes(bytes(48 * MIB))
        if not is_foreseen:
            monkeypatch.setattr(files, "free_bytes", lambda folder: 1 << 60)
        later = clock.seconds() + 60
        monkeypatch.setattr(clock, "seconds", lambda: later)
        words = "are free" if is_foreseen else "No space left on device"
        with pytest.raises(BackupError, match=words):
            await back_up_all(settings, None, target)
        assert_alone(target, first)


@pytest.mark.parametrize("name", ["sqlite", "postgres"])
async def test_a_disk_that_fills_under_the_database_is_reported(
    empty_postgres: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(tmp_path, empty_postgres if name == "postgres" else "")
    funded(settings.storage.url)
    monkeypatch.setattr(files, "free_bytes", lambda folder: 1 << 60)
    with small_disk(tmp_path / "disk", 1) as disk:
        target = disk / "backups"
        target.mkdir(mode=0o700)
        (disk / "filler").write_bytes(bytes(MIB - 32 * 1024))
        with pytest.raises(BackupError, match=rf"^{target}.*(full|No space left)"):
            await back_up_all(settings, None, target)
        assert list(target.iterdir()) == []
