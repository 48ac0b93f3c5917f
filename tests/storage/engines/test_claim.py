"""One service at a time has an SQLite database, however many processes it is made of."""

import os
import signal
import stat
from pathlib import Path

import pytest

from storage.engines.claim import take_claim
from storage.engines.errors import AlreadyClaimedError, CannotOpenError
from storage.engines.open import open_store


def unexpected() -> None:
    raise AssertionError("the claim was lost")


def test_a_claim_lasts_as_long_as_a_process_lives_that_inherited_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new/proxyd.db"
    claim = take_claim(url)
    assert claim is not None
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert not os.get_inheritable(claim)  # a program that one of them starts has no part in it
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    os.close(claim)
    try:
        with pytest.raises(AlreadyClaimedError, match="another proxyd"):
            take_claim(url)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    again = take_claim(url)
    assert again is not None
    os.close(again)


async def test_a_lone_daemon_is_refused_while_others_share_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    claim = take_claim(url)
    assert claim is not None
    shared = [await open_store(url, is_shared=True) for _ in range(2)]
    for store in shared:
        await store.claim(unexpected)
    alone = await open_store(url)
    with pytest.raises(AlreadyClaimedError):
        await alone.claim(unexpected)
    for store in (*shared, alone):
        await store.close()
    os.close(claim)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotOpenError, match="file"):
        take_claim(f"sqlite:///{tmp_path}/file/proxyd.db")
    (tmp_path / "proxyd.db.lock").mkdir()
    with pytest.raises(CannotOpenError, match="Is a directory"):
        take_claim(f"sqlite:///{tmp_path}/proxyd.db")


def test_a_server_has_no_claim() -> None:
    assert take_claim("postgresql://nowhere/proxyd") is None
