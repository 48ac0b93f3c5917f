import json
import os
from pathlib import Path

import pytest

from proxyctl.files import FileError
from proxyctl.worker.base import names
from proxyctl.worker.base.states import AttemptState
from proxyctl.worker.task.journal import WORK_MAX_BYTES, Journal, Report, Stop

WORK = {"job_id": "01234567-89ab-cdef-0123-456789abcdef", "attempt": 1, "timeout_s": 60}


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    entry = journal.add(dict(WORK), ("GPU-1",))
    entry = journal.move(entry, AttemptState.PREPARING)
    report = Report("fail", {"kind": "image"})
    entry = journal.move(entry, AttemptState.REPORTING, report=report, stop=Stop("x", "host", 3.0))
    assert Journal(tmp_path).load() == [entry]
    journal.forget(entry)
    assert Journal(tmp_path).load() == []
    assert list((tmp_path / names.ATTEMPTS).iterdir()) == []


def test_a_written_entry_can_be_read_and_a_failed_write_is_not_taken(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path)
    # As large as a buyer may make it, of characters that take six bytes each.
    entry = journal.add({**WORK, "payload": {"script": "\u00e9" * 500_000}}, ())
    assert Journal(tmp_path).load() == [entry]
    nested: dict[str, object] = {}
    for _ in range(2000):
        nested = {"x": nested}
    for payload in ({"script": "x" * WORK_MAX_BYTES}, nested):
        with pytest.raises(FileError, match="larger than any job may be"):
            journal.add({**WORK, "attempt": 2, "payload": payload}, ())
    assert Journal(tmp_path).load() == [entry]


def test_no_state_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    entry = journal.add(dict(WORK), ())
    with pytest.raises(AssertionError):
        journal.move(entry, AttemptState.RUNNING)


def test_a_folder_without_an_entry_is_removed_and_a_broken_entry_is_not(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    entry = journal.add(dict(WORK), ())
    attempts = tmp_path / names.ATTEMPTS
    (attempts / ".gone-x").mkdir()
    (attempts / f"{WORK['job_id']}-2").mkdir()
    assert journal.load() == [entry]
    assert len(list(attempts.iterdir())) == 1
    path = journal.folder_of(entry) / names.ENTRY
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    with pytest.raises(FileError, match="another version"):
        journal.load()
    path.write_text("{")
    with pytest.raises(FileError):
        journal.load()


def test_the_disk_is_waited_for_once_others_get_an_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    journal = Journal(tmp_path)
    entry = journal.move(journal.add(dict(WORK), ()), AttemptState.PREPARING)
    entry = journal.move(entry, AttemptState.STARTING)
    assert Journal(tmp_path).load() == [entry]
    assert not synced
    for state in (
        AttemptState.RUNNING,
        AttemptState.ENDED,
        AttemptState.UPLOADING,
        AttemptState.REPORTING,
        AttemptState.DONE,
    ):
        entry = journal.move(entry, state)
    assert len(synced) == 5


def test_the_begin_of_a_preparation_is_not_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    entry = journal.add(dict(WORK), ())
    assert journal.move(entry, AttemptState.PREPARING).state is AttemptState.PREPARING
    assert Journal(tmp_path).load() == [entry]


def test_an_entry_that_a_loss_of_power_has_left_empty_is_removed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    entry = journal.add(dict(WORK), ())
    (journal.folder_of(entry) / names.ENTRY).write_bytes(b"")
    assert journal.load() == []
    assert not journal.folder_of(entry).exists()


def test_a_folder_that_cannot_be_removed_keeps_no_slot_and_no_agent_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> None:
        raise FileError(f"{path} cannot be removed: Operation not permitted")

    journal = Journal(tmp_path)
    first, second = journal.add(dict(WORK), ()), journal.add({**WORK, "attempt": 2}, ())
    monkeypatch.setattr("proxyctl.worker.task.journal.remove_tree", refuse)
    journal.forget(first)
    assert Journal(tmp_path).load() == [second]
    assert caplog.text.count("cannot be removed: Operation not permitted") == 2
    monkeypatch.undo()
    assert Journal(tmp_path).load() == [second]
    assert len(list((tmp_path / names.ATTEMPTS).iterdir())) == 1


@pytest.mark.parametrize("job_id", ["../../x", "", "a/b", "x" * 36])
def test_an_attempt_without_a_proper_name_gets_no_folder(tmp_path: Path, job_id: str) -> None:
    with pytest.raises(FileError, match="no name of an attempt"):
        Journal(tmp_path).add({**WORK, "job_id": job_id}, ())
    assert list(tmp_path.iterdir()) == []
