"""proxyctl.protocol.jobspec.file_names: names that every usual system takes."""

import pytest
from support.base.cases import cases

from proxyctl.protocol.jobspec import SpecError, check_file_name, download_name

TAKEN = ["a", "out/a.txt", ".bashrc", "a b", "Console", "com", "nul1", "ünï", "x.con", "a..b"]
REFUSED = [
    *("C:evil", "a:b", "a<b", 'a"b', "a|b", "a?", "a*"),
    *("...", ".. ", " ", " sp", "sp ", "dot.", "out./a", "\u3000a"),
    *("CON", "con", "NUL.txt", "a/aux/b", "COM1", "lpt9.log", "COM\u00b9", "CONIN$", "con .txt"),
    *("", "..", "/a", "a//b"),
]


@cases("name", TAKEN)
def test_a_usual_name_is_taken(name: str) -> None:
    check_file_name("name", name)


@cases("name", REFUSED)
def test_a_name_that_some_system_cannot_take_is_refused(name: str) -> None:
    with pytest.raises(SpecError):
        check_file_name("name", name)


def test_a_download_has_a_name_without_leading_dots() -> None:
    names = ["out/.bashrc", "...a", "a.txt", "x/."]
    assert [download_name(each) for each in names] == ["bashrc", "a", "a.txt", "file"]
