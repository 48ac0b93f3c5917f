"""Secrets from files: by path, as a credential of systemd's, and every way in which that fails."""

from pathlib import Path

import pytest
from support.base.cases import cases

from config.load import SettingsError, load

SECRET = "tell-nobody-" * 4


def test_a_secret_is_read_from_the_file_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET + "\n")
    settings = load(None, {"PROXYD_AUTH__SIGNING_KEY": f"@{tmp_path}/key"})
    assert settings.auth.signing_key == SECRET


def test_a_secret_is_a_credential_of_systemds(tmp_path: Path) -> None:
    (tmp_path / "mail").write_text("pass word\r\n")
    (tmp_path / "url").write_text("postgresql://user:secret@db/proxyd")
    path = tmp_path / "proxyd.toml"
    path.write_text(
        '[mail]\npassword = "@mail"\n[storage]\nurl = "@url"\n[auth]\nsigning_key_file = "/k"\n'
    )
    settings = load(path, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert settings.mail.password == "pass word"
    assert settings.storage.url == "postgresql://user:secret@db/proxyd"


def test_two_marks_are_one_that_means_itself() -> None:
    assert load(None, {"PROXYD_MAIL__PASSWORD": "@@home"}).mail.password == "@home"


def test_a_setting_that_is_no_secret_is_never_a_file() -> None:
    assert load(None, {"PROXYD_MAIL__SENDER": "@/etc/hostname"}).mail.sender == "@/etc/hostname"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\n", "is empty"),
        (b"x" * 70_000, "is too long"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_secret_is_refused(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        load(None, {"PROXYD_MAIL__PASSWORD": f"@{tmp_path}/key"})
    assert caught.value.problems == [f"PROXYD_MAIL__PASSWORD: {tmp_path}/key: {problem}"]


@cases("name", ["@mail", "@../mail"])
def test_a_credential_that_is_not_passed_is_an_error(name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(None, {"PROXYD_MAIL__PASSWORD": name})
    assert caught.value.problems[0].startswith("PROXYD_MAIL__PASSWORD: expected @/absolute/path")
