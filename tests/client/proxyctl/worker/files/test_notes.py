"""proxyctl.worker.files.notes"""

from pathlib import Path

from proxyctl.worker.base import names
from proxyctl.worker.files.notes import LINES_MAX, NOTES_MAX, Notes


def test_a_note_is_a_line_of_its_own_and_comes_once(tmp_path: Path) -> None:
    log = tmp_path / names.LOGS["err"]
    log.write_bytes(b"begun, and not ended")
    notes = Notes(tmp_path)
    for _ in range(2):
        notes.write(["ckpt/latest: it is a link"])
    assert log.read_bytes() == b"begun, and not ended\nproxyctl: ckpt/latest: it is a link\n"
    notes.write(["a\nproxyctl: forged"])
    assert len(log.read_bytes().splitlines()) == 3


def test_notes_have_bounds(tmp_path: Path) -> None:
    log = tmp_path / names.LOGS["err"]
    log.touch()
    notes = Notes(tmp_path)
    for number in range(2 * NOTES_MAX):
        notes.write([f"{number}-{each}" for each in range(2 * LINES_MAX)])
    lines = log.read_text().splitlines()
    assert len(lines) == NOTES_MAX * (LINES_MAX + 1)
    assert lines[LINES_MAX] == f"proxyctl: and {LINES_MAX} more"


def test_a_log_that_is_gone_or_a_link_is_left_alone(tmp_path: Path) -> None:
    Notes(tmp_path).write(["words"])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    (tmp_path / names.LOGS["err"]).symlink_to(tmp_path / "file")
    Notes(tmp_path).write(["words"])
    assert (tmp_path / "file").read_text() == ""
