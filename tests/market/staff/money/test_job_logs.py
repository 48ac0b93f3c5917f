"""The log of an attempt for the staff: lines, hits, and the part that was cut out."""

from pathlib import Path

from market.staff.money import job_logs
from storage.logs.files import Attempt, LogFiles


def test_a_long_log_is_read_over_its_cut(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, keep_bytes=1024 * 1024)
    attempt, line = Attempt("0" * 8, 1), b"x" * 1_023 + b"\n"
    for at in range(5):
        files.write(attempt, "out", at * 1024 * 1024, line * 1024)
    found = job_logs.shown(tmp_path, 1024 * 1024, attempt, "stdout", "were cut out")
    assert any(each.is_hit for each in found)
    assert all(len(each.text) <= job_logs.LINE_MAX_CHARACTERS for each in found)
    assert job_logs.shown(tmp_path, 1024 * 1024, attempt, "stderr", "") == []
