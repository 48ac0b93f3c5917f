import stat
from pathlib import Path

import pytest

from proxyctl import files
from proxyctl.files import FileError


def test_a_file_is_replaced_whole_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "file.json"
    assert files.read(path) is None
    assert files.stamp(path) == (0, 0)
    files.write(path, {"a": 1})
    before = files.stamp(path)
    files.write(path, {"a": "\u00e4"}, durable=True)
    assert files.read(path) == {"a": "\u00e4"}
    assert files.stamp(path) != before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert files.is_private(path)
    path.chmod(0o644)
    assert not files.is_private(path)
    assert [each.name for each in path.parent.iterdir()] == ["file.json"]
    files.remove(path)
    files.remove(path)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_file_that_cannot_be_understood_is_named(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(text)
    with pytest.raises(FileError, match=r"file\.json is damaged.*move it away"):
        files.read(path)


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(FileError, match=r"folder\.json cannot be written"):
        files.write(tmp_path / "folder.json", {})
    assert [each.name for each in tmp_path.iterdir()] == ["folder.json"]
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be written"):
        files.write(tmp_path / "file" / "below.json", {})
    with pytest.raises(FileError, match="cannot be removed"):
        files.remove(tmp_path / "folder.json")


def test_the_folder_is_where_the_system_has_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert files.default_folder() == tmp_path / "proxyctl"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/home/ann")
    assert files.default_folder() == Path("/home/ann/.config/proxyctl")
