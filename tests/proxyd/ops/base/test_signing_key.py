"""The signing key: configured, made once, kept from other users, refused when too short."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from support.base.cases import cases

from config.check import SIGNING_KEY_MIN_BYTES
from config.settings import AuthSettings, Settings, StorageSettings
from proxyd.ops.base.signing_key import SigningKeyError, key_file, signing_key


def settings_in(folder: Path) -> Settings:
    """Return settings whose database lies in a folder."""
    return Settings(storage=StorageSettings(url=f"sqlite:///{folder}/proxyd.db"))


def settings_with_file(path: Path) -> Settings:
    """Return settings that name the key's file."""
    return Settings(auth=AuthSettings(signing_key_file=str(path)))


def test_a_configured_key_is_used_and_nothing_is_written(tmp_path: Path) -> None:
    settings = Settings(
        storage=StorageSettings(url=f"sqlite:///{tmp_path}/proxyd.db"),
        auth=AuthSettings(signing_key="ü" * 20, signing_key_file=str(tmp_path / "unused")),
    )
    assert signing_key(settings) == ("ü" * 20).encode()
    assert list(tmp_path.iterdir()) == []


@cases(
    ("url", "path"),
    [
        ("sqlite:///var/proxyd.db", "var/signing.key"),
        ("sqlite:///proxyd.db", "signing.key"),
        ("sqlite:////srv/data/proxyd.db", "/srv/data/signing.key"),
    ],
)
def test_the_key_lies_beside_the_database(url: str, path: str) -> None:
    assert key_file(Settings(storage=StorageSettings(url=url))) == Path(path)


def test_a_named_file_is_where_the_key_lies() -> None:
    settings = Settings(
        storage=StorageSettings(url="postgresql://db/proxyd"),
        auth=AuthSettings(signing_key_file="/etc/proxyd/key"),
    )
    assert key_file(settings) == Path("/etc/proxyd/key")


def test_the_first_start_makes_a_key_and_the_second_reads_it(tmp_path: Path) -> None:
    made = signing_key(settings_in(tmp_path))
    assert len(made) >= SIGNING_KEY_MIN_BYTES
    assert signing_key(settings_in(tmp_path)) == made
    assert [path.name for path in tmp_path.iterdir()] == ["signing.key"]


def test_two_installations_have_two_keys(tmp_path: Path) -> None:
    one, other = settings_in(tmp_path / "one"), settings_in(tmp_path / "other")
    assert signing_key(one) != signing_key(other)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_the_owner_reads_the_made_key(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "var"
    before = os.umask(umask)
    try:
        signing_key(settings_in(folder))
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "signing.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_missing_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "key"
    assert signing_key(settings_with_file(path)) == path.read_bytes().strip()


def test_the_line_end_of_an_editor_is_no_part_of_the_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"k" * 40 + b"\r\n")
    assert signing_key(settings_with_file(path)) == b"k" * 40


def test_an_existing_key_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"k" * SIGNING_KEY_MIN_BYTES)
    path.chmod(0o400)
    assert signing_key(settings_with_file(path)) == b"k" * SIGNING_KEY_MIN_BYTES
    assert path.read_bytes() == b"k" * SIGNING_KEY_MIN_BYTES


@pytest.mark.parametrize("content", [b"", b"\n", b"k" * 31, b"k" * 31 + b"\n" * 9])
def test_a_key_that_is_too_short_is_refused_by_its_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(SigningKeyError) as caught:
        signing_key(settings_with_file(path))
    assert str(caught.value) == (
        f"the signing key {path} has fewer than 32 bytes: restore it from a backup; without one "
        "move it away: a new one is made, which ends every login and opens no sealed data, such as "
        "payout methods"
    )
    assert path.read_bytes() == content


def test_a_folder_in_the_place_of_the_key_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SigningKeyError) as caught:
        signing_key(settings_with_file(tmp_path))
    assert str(caught.value) == f"the signing key {tmp_path}: Is a directory"


def test_a_file_in_the_place_of_the_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "key"
    with pytest.raises(SigningKeyError, match=f"the signing key {path}: ."):
        signing_key(settings_with_file(path))


def test_the_second_process_takes_the_key_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"

    def lose(draft: Path, target: Path) -> None:
        target.write_bytes(b"w" * 40 + b"\n")
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", lose)
    assert signing_key(settings_with_file(path)) == b"w" * 40
    assert list(tmp_path.iterdir()) == [path]


def test_many_first_starts_at_once_agree(tmp_path: Path) -> None:
    starts = 8
    barrier = Barrier(starts)

    def start() -> bytes:
        barrier.wait(timeout=20)
        return signing_key(settings_in(tmp_path))

    with ThreadPoolExecutor(starts) as threads:
        keys = {future.result() for future in [threads.submit(start) for _ in range(starts)]}
    assert len(keys) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["signing.key"]
