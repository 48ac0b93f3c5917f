"""`make setup` compiles where it can, says in a line what it did, and fails nowhere."""

import os
import re
from pathlib import Path

import pytest
from support.small import SMALL, Checkout, needs_compiler

from proxyd.compiled.builder import COST, Builder


@pytest.fixture
def bare(tmp_path: Path) -> Checkout:
    """A small checkout that was never compiled."""
    checkout = Checkout(tmp_path)
    checkout.write()
    return checkout


def test_what_is_compiled_is_not_compiled_again(checkout: Checkout) -> None:
    before = checkout.library.stat()
    assert checkout.build() == ""
    assert checkout.library.stat() == before


def test_what_is_compiled_stays_when_the_compiler_has_gone(checkout: Checkout) -> None:
    assert checkout.build(PATH=str(checkout.root)) == ""
    assert checkout.look() == "21 compiled"


def test_an_edit_compiles_anew_what_it_changes(checkout: Checkout) -> None:
    compiled = len(re.findall(r" -c ", checkout.log))
    checkout.small.write_text(SMALL.replace("+ BASE", "- BASE"))
    assert checkout.build().startswith("compiled: 2 modules of the data path, in ")
    assert checkout.look() == "19 compiled"
    assert 0 < len(re.findall(r" -c ", checkout.log)) < compiled / 2


def test_a_compiler_that_fails_is_named(checkout: Checkout) -> None:
    told = checkout.build(CC="/bin/false")
    log = next((checkout.root / "build" / "compiled").glob("*/log"))
    why = f"the C compiler failed; {log} has its words"
    assert told == f"proxyd runs interpreted: {why}; {COST}"
    assert checkout.look() == f"21 interpreted: {why}; `make setup` compiles anew"
    assert "$ /bin/false " in checkout.log
    assert checkout.build().startswith("compiled: "), "it is tried again"


def test_a_compiler_that_makes_nonsense_is_found_out(bare: Checkout) -> None:
    needs_compiler()
    compiler = bare.root / "cc"
    compiler.write_text('#!/bin/sh\nwhile test "$1" != -o; do shift; done\necho nonsense > "$2"\n')
    compiler.chmod(0o755)
    assert "loading what was compiled failed; " in bare.build(CC=str(compiler))
    assert bare.look().startswith("21 interpreted: loading what was compiled failed; ")


def test_without_a_compiler_it_says_what_to_install(bare: Checkout) -> None:
    told = bare.build(PATH=str(bare.root))
    assert re.fullmatch(
        r"proxyd runs interpreted: there is no C compiler \(.*cc.*\); apt-get install gcc; "
        + re.escape(COST),
        told,
    )
    assert bare.look().startswith("21 interpreted: there is no C compiler")
    assert "no C compiler (no-such-cc)" in bare.build(CC="no-such-cc")


def test_without_headers_it_says_what_to_install(bare: Checkout) -> None:
    needs_compiler()
    variables = {name: value for name, value in os.environ.items() if name != "PROXYD_INTERPRETED"}
    told = Builder(bare.root, bare.root, variables, bare.root / "none").build()
    missing = f"Python's headers are missing ({bare.root / 'none'}); apt-get install python3-dev"
    assert told == f"proxyd runs interpreted: {missing}; {COST}"
    assert bare.look() == f"21 interpreted: {missing}; `make setup` compiles anew"


def test_a_source_that_cannot_be_compiled_is_left_to_python(bare: Checkout) -> None:
    needs_compiler()
    bare.small.write_text(SMALL.replace("-> int", "-> str"))
    assert "proxyd runs interpreted: mypyc failed; " in bare.build()
    assert "proxyd/small.py:7: error: " in bare.log
    assert bare.look().startswith("21 interpreted: mypyc failed; ")


def test_a_folder_that_cannot_be_written_is_no_failure(bare: Checkout) -> None:
    (bare.root / "build").write_text("not a folder")
    assert bare.build().startswith("proxyd runs interpreted: ")


def test_nothing_is_compiled_where_it_is_switched_off(bare: Checkout) -> None:
    told = bare.build(PROXYD_INTERPRETED="1")
    assert told == "proxyd runs interpreted: PROXYD_INTERPRETED is set; nothing was compiled"
    assert not (bare.root / "build").exists()


def test_what_the_checkout_has_is_installed_as_it_is(checkout: Checkout, tmp_path: Path) -> None:
    installed = Checkout(tmp_path / "installed")
    installed.root.mkdir()
    installed.write()
    told = checkout.build(installed.root, CC="/bin/false")
    assert "the C compiler failed" in told, "it was made by another one"
    told = checkout.build(installed.root)
    assert told.startswith("compiled: 2 modules")
    assert " -c " not in checkout.log.replace(" -c '", ""), "there was nothing to compile"
    assert installed.look() == "21 compiled"
