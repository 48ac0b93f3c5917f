"""proxyctl.worker.base.private: folders that other users of the machine can write to."""

import os
from pathlib import Path

import pytest

from proxyctl.words import OwnerError
from proxyctl.worker.base.private import require_private

UID = 61_001  # an ordinary user without a name


def test_a_folder_of_only_its_owner_is_taken(tmp_path: Path) -> None:
    require_private(tmp_path)
    require_private(tmp_path / "a" / "b")  # which are made later


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_folder_that_others_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(OwnerError, match=r"every user of this machine.*chmod go-w"):
        require_private(tmp_path)


@pytest.mark.parametrize(("mode", "is_taken"), [(0o777, False), (0o1777, True), (0o755, True)])
def test_a_folder_above_may_be_written_to_only_with_the_sticky_bit(
    tmp_path: Path, mode: int, is_taken: bool
) -> None:
    (tmp_path / "agent").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("agent")
    tmp_path.chmod(mode)
    for name in ("agent", "link"):
        if is_taken:
            require_private(tmp_path / name)
        else:
            with pytest.raises(OwnerError, match="could replace"):
                require_private(tmp_path / name)


def test_the_group_of_one_user_is_that_user(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to a group")
    tmp_path.chmod(0o770)
    os.chown(tmp_path, 0, UID)
    with pytest.raises(OwnerError, match="its group"):
        require_private(tmp_path)
    os.chown(tmp_path, 0, 0)
    require_private(tmp_path)


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(tmp_path, UID, UID)
    with pytest.raises(OwnerError, match="belongs to another user"):
        require_private(tmp_path)
