"""A manifest that says nothing sensible is no reason to fail."""

import pytest
from support.base.cases import cases
from support.machines.small import Checkout

from proxyd.compiled.manifest import MANIFEST_MAX_BYTES, TITLE, Entry, Manifest, UnusableError, read

DAMAGED = "the compiled files' manifest is damaged"


@cases(
    "content",
    [
        b"",
        b"\n",
        b"garbage\n",
        f"{TITLE}\n".encode(),
        f"{TITLE}\nend\n".encode(),
        b"\0" * 4096,
        b"end\n" * MANIFEST_MAX_BYTES,
    ],
)
def test_garbage_is_named(checkout: Checkout, content: bytes) -> None:
    checkout.manifest.write_bytes(content)
    assert checkout.look() == f"21 interpreted: {DAMAGED}; `make setup` compiles it"


def test_bytes_that_are_no_text_are_named(checkout: Checkout) -> None:
    checkout.manifest.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UnusableError, match="the compiled files' manifest cannot be read: "):
        read(str(checkout.root))


def test_a_folder_in_its_place_is_named(checkout: Checkout) -> None:
    checkout.manifest.unlink()
    checkout.manifest.mkdir()
    with pytest.raises(UnusableError, match=r"manifest cannot be read: .*Is a directory"):
        read(str(checkout.root))


@cases("line", range(2, 7))
@cases(
    "text", ["", "file", "file 00 0 0", "file 00 many 0 a", "file 00 0 0 ../a", "file 00 0 0 /a"]
)
def test_a_line_that_says_nothing_spoils_it(checkout: Checkout, line: int, text: str) -> None:
    lines = checkout.manifest.read_text().splitlines()
    lines[line] = text
    checkout.manifest.write_text("\n".join([*lines, ""]))
    with pytest.raises(UnusableError, match=DAMAGED):
        read(str(checkout.root))


def test_one_that_was_cut_off_is_not_believed(checkout: Checkout) -> None:
    text = checkout.manifest.read_text()
    for left in range(0, len(text) - 1, 50):
        checkout.manifest.write_text(text[:left])
        with pytest.raises(UnusableError):
            read(str(checkout.root))


def test_one_without_its_library_is_not_believed(checkout: Checkout) -> None:
    files = {"proxyd/small.py": Entry("0", 0, 0)}
    checkout.manifest.write_text(Manifest("recipe", "proxyd/small", files).text())
    checkout.small.unlink()
    assert "compiled files are stale: proxyd/small.py is gone" in checkout.run(
        "-c", "from proxyd.compiled import finder; print(finder.description())"
    )
    checkout.manifest.write_text(Manifest("recipe", "proxyd/small", {}).text())
    assert DAMAGED in checkout.run(
        "-c", "from proxyd.compiled import finder; print(finder.description())"
    )
