"""The limits of a new machine are there while something is measured, and not a moment longer."""

from pathlib import Path

import pytest

from bench import buffers
from bench.buffers import DEFAULTS, BuffersError

TUNED = dict.fromkeys(DEFAULTS, "4194304") | {
    "net/ipv4/tcp_rmem": "4096\t131072\t33554432",
    "net/ipv4/tcp_wmem": "4096\t16384\t4194304",
}


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """Return a folder with the limits of a machine that was tuned."""
    for name, text in TUNED.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    return tmp_path


def test_they_are_set_and_put_back(system: Path) -> None:
    before = buffers.present(system)
    assert not buffers.are_default(system)
    with buffers.default(system):
        assert buffers.present(system) == DEFAULTS
        assert buffers.are_default(system)
        assert buffers.described(system) == "`rmem_max` is 212,992, `wmem_max` 212,992 bytes."
    assert buffers.present(system) == before


def test_they_are_put_back_after_a_failure(system: Path) -> None:
    before = buffers.present(system)
    with pytest.raises(ZeroDivisionError), buffers.default(system):
        raise ZeroDivisionError
    assert buffers.present(system) == before


def test_one_that_cannot_be_set_is_told_and_the_others_are_put_back(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = buffers.present(system)
    write = Path.write_text

    def refuse(path: Path, text: str) -> int:
        if path.name == "tcp_rmem" and text == DEFAULTS["net/ipv4/tcp_rmem"]:
            raise PermissionError(f"cannot write {path.name}")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(BuffersError, match="cannot write tcp_rmem; root alone"):
        with buffers.default(system):
            pytest.fail("measured")
    assert buffers.present(system) == before


def test_the_limits_of_this_machine_can_be_read() -> None:
    assert set(buffers.present()) == set(DEFAULTS)
    assert "bytes" in buffers.described()
