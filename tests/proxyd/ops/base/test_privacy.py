"""Files that are the owner's alone: the daemon says so when they are not."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemons import process

from config.settings import AuthSettings, Settings, StorageSettings
from proxyd.ops.base.privacy import Readers, readers
from proxyd.ops.base.signing_key import SigningKeyError, exposed_files, signing_key

KEY = "k" * 40


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, which the folders of pytest are not."""
    made = Path(tempfile.mkdtemp(prefix="proxyd-open-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def settings(folder: Path) -> Settings:
    return Settings(storage=StorageSettings(url=f"sqlite:///{folder}/proxyd.db"))


def put(path: Path, mode: int) -> Path:
    path.write_text(KEY)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("mode", "who"),
    [
        (0o600, Readers.NOBODY),
        (0o400, Readers.NOBODY),
        (0o711, Readers.NOBODY),
        (0o640, Readers.GROUP),
        (0o620, Readers.GROUP),
        (0o644, Readers.EVERYBODY),
        (0o604, Readers.EVERYBODY),
        (0o602, Readers.EVERYBODY),
    ],
)
def test_the_mode_decides_the_users_that_may_read_or_change(
    folder: Path, mode: int, who: Readers
) -> None:
    assert readers(put(folder / "file", mode)) is who


@pytest.mark.parametrize(
    ("above", "who"),
    [(0o700, Readers.NOBODY), (0o750, Readers.GROUP), (0o751, Readers.EVERYBODY)],
)
def test_a_folder_keeps_out_users_that_may_not_enter_it(
    folder: Path, above: int, who: Readers
) -> None:
    (folder / "above" / "between").mkdir(parents=True)
    (folder / "above").chmod(above)
    assert readers(put(folder / "above" / "between" / "file", 0o644)) is who


def test_the_target_of_a_link_counts(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(put(folder / "file", 0o644))
    assert readers(link) is Readers.EVERYBODY


def test_a_key_that_every_user_may_read_is_refused(folder: Path, settings: Settings) -> None:
    path = put(folder / "signing.key", 0o644)
    with pytest.raises(SigningKeyError, match=r"every user of this machine.*chmod go-rwx"):
        signing_key(settings)
    path.chmod(0o600)
    assert signing_key(settings) == KEY.encode()
    assert exposed_files(settings) == []


def test_a_key_that_a_group_may_read_is_used_and_reported(folder: Path, settings: Settings) -> None:
    path = put(folder / "signing.key", 0o640)
    assert signing_key(settings) == KEY.encode()
    assert exposed_files(settings) == [
        f"the signing key {path} may be read or changed by its group: chmod go-rwx {path}"
    ]


def test_a_key_of_the_settings_has_no_file(folder: Path, settings: Settings) -> None:
    put(folder / "signing.key", 0o644)
    by_settings = Settings(storage=settings.storage, auth=AuthSettings(signing_key=KEY))
    assert signing_key(by_settings) == KEY.encode()
    assert exposed_files(by_settings) == []


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_each_file_of_the_database_is_looked_at(
    folder: Path, settings: Settings, suffix: str
) -> None:
    path = put(folder / f"proxyd.db{suffix}", 0o644)
    (warning,) = exposed_files(settings)
    assert warning.startswith(f"the database {path} may be read or changed by every user")


def test_a_database_on_a_server_has_no_file() -> None:
    auth = AuthSettings(signing_key=KEY)
    assert (
        exposed_files(Settings(storage=StorageSettings(url="postgresql://db/x"), auth=auth)) == []
    )


def test_a_start_warns_of_files_that_others_may_read_and_goes_on(folder: Path) -> None:
    url, database = f"sqlite:///{folder}/proxyd.db", folder / "proxyd.db"
    process.funded(url)
    database.chmod(0o644)
    with process.serving(url) as daemon:
        assert f"WARNING daemon: the database {database} may be read or changed" in daemon.output
        database.chmod(0o600)
    for beside in folder.glob("proxyd.db-*"):
        beside.chmod(0o600)
    with process.serving(url) as daemon:
        assert "may be read" not in daemon.output


def test_config_check_warns_of_the_database_and_refuses_the_key(folder: Path) -> None:
    database = put(folder / "proxyd.db", 0o640)
    warned = process.run(f"sqlite:///{database}", "config", "check")
    assert warned.returncode == 0
    assert warned.stderr == (
        f"proxyd: warning: the database {database} may be read or changed by its group: "
        f"chmod go-rwx {database}\n"
    )
    key = put(folder / "signing.key", 0o644)
    ours = process.environment(
        f"sqlite:///{database}", PROXYD_AUTH__SIGNING_KEY="", PROXYD_AUTH__SIGNING_KEY_FILE=str(key)
    )
    refused = subprocess.run(
        [sys.executable, "-m", "proxyd", "config", "check"],
        cwd=process.ROOT,
        env=ours,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2
    assert "auth.signing_key_file: the signing key" in refused.stderr
