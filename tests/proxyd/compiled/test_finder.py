"""Compiled files are used if all is as it was when they were made, and else none of them."""

import os
import re
import shutil
from importlib import import_module

import pytest
from support.machines.small import CONSTANTS, SMALL, Checkout

from proxyd.compiled import finder, manifest
from proxyd.compiled.hot import HOT

FAILING = """
import sys, traceback
from proxyd import small
try:
    small.fail(1)
except ZeroDivisionError:
    traceback.print_exc(file=sys.stdout)
"""
IMPORTED_BEFORE = """
import sys, types
sys.modules["proxyd.folder.smaller"] = types.ModuleType("proxyd.folder.smaller")
from proxyd.compiled import finder
print(finder.description())
"""
REMEDY = "; `make setup` compiles it"


def test_they_are_used(checkout: Checkout) -> None:
    assert checkout.look() == "21 compiled"


def test_a_variable_switches_them_off(checkout: Checkout) -> None:
    assert checkout.look(PROXYD_INTERPRETED="1") == "21 interpreted: PROXYD_INTERPRETED is set"
    assert checkout.look(PROXYD_INTERPRETED="0") == "21 compiled"


def test_they_are_not_used_beside_a_module_that_was_imported_from_its_source(
    checkout: Checkout,
) -> None:
    """A module of the market may be imported before proxyd: its code would call missing names."""
    why = "proxyd.folder.smaller was imported before proxyd"
    assert checkout.run("-c", IMPORTED_BEFORE) == f"interpreted: {why}"


def test_these_tests_import_proxyd_before_all_modules_of_the_data_path() -> None:
    assert "was imported before proxyd" not in finder.description()


def test_an_edit_is_never_shadowed(checkout: Checkout) -> None:
    before = checkout.small.stat()
    checkout.small.write_text(SMALL.replace("+ BASE", "- BASE"))
    assert checkout.small.stat().st_size == before.st_size
    stale = "interpreted: compiled files are stale: proxyd/small.py has changed"
    assert checkout.look() == f"19 {stale}{REMEDY}"
    checkout.small.write_text(SMALL)
    assert checkout.look() == "21 compiled", "it is again what was compiled"


def test_a_constant_that_was_compiled_in_is_never_shadowed(checkout: Checkout) -> None:
    checkout.constants.write_text(CONSTANTS.replace("= 1", "= 5"))
    stale = "interpreted: compiled files are stale: proxyd/constants.py has changed"
    assert checkout.look() == f"25 {stale}{REMEDY}"


def test_a_source_that_was_written_anew_with_the_same_text_is_the_same(checkout: Checkout) -> None:
    os.utime(checkout.small, ns=(0, 0))
    assert checkout.look() == "21 compiled"


def test_another_list_of_modules_is_another_library(checkout: Checkout) -> None:
    hot = checkout.root / "proxyd" / "compiled" / "hot.py"
    hot.write_text(hot.read_text() + 'HOT += ("proxyd.constants",)\n')
    assert "compiled files are stale: proxyd/compiled/hot.py has changed" in checkout.look()


@pytest.mark.parametrize("left", [0, 1, 100, 5000, -1])
def test_a_truncated_library_is_not_loaded(checkout: Checkout, left: int) -> None:
    whole = checkout.library.read_bytes()
    checkout.library.write_bytes(whole[:left])
    assert_not_loaded(checkout)


def test_a_foreign_library_is_not_loaded(checkout: Checkout) -> None:
    whole = checkout.library.read_bytes()
    checkout.library.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert_not_loaded(checkout)


def assert_not_loaded(checkout: Checkout) -> None:
    path = checkout.library.relative_to(checkout.root)
    why = f"the compiled file is damaged, or a foreign one: {path}"
    assert checkout.look() == f"21 interpreted: {why}{REMEDY}"


def test_a_library_that_is_missing_is_named(checkout: Checkout) -> None:
    path = checkout.library.relative_to(checkout.root)
    checkout.library.unlink()
    why = f"compiled files are stale: {path} is missing"
    assert checkout.look() == f"21 interpreted: {why}{REMEDY}"


def test_a_library_that_cannot_be_loaded_is_not_used(checkout: Checkout) -> None:
    """As one that needs a newer C library."""
    checkout.library.write_bytes(b"\x7fELF, but no more than that")
    entry = manifest.entry_of(str(checkout.library))
    name = checkout.library.relative_to(checkout.root)
    line = rf"^file .* {re.escape(str(name))}$"
    new = f"file {entry.digest} {entry.size} {entry.changed_ns} {name}"
    text = re.sub(line, new, checkout.manifest.read_text(), flags=re.MULTILINE)
    checkout.manifest.write_text(text)
    assert checkout.look().startswith("21 interpreted: the compiled files cannot be loaded: ")


def test_files_of_another_python_are_not_used(checkout: Checkout) -> None:
    own = checkout.folder
    other = own.with_name("cpython-399-x86_64-linux-gnu")
    own.rename(other)
    why = f"compiled files are for {other.name}, and this Python is {own.name}"
    assert checkout.look() == f"21 interpreted: {why}{REMEDY}"
    shutil.copytree(other, own)
    checkout.manifest.write_text(
        checkout.manifest.read_text().replace(f"python {own.name}", f"python {other.name}")
    )
    why = f"the compiled files are for another Python than {own.name}: python {other.name}"
    assert checkout.look() == f"21 interpreted: {why}{REMEDY}"


def test_another_python_of_the_same_name_has_files_of_its_own(checkout: Checkout) -> None:
    described = "from proxyd.compiled import finder; print(finder.description())"
    for other in ("sys.base_prefix = '/other'", "sys.version = '3.99.1 (main)'"):
        told = checkout.run("-c", f"import sys; {other}; {described}")
        assert re.match(rf"interpreted: compiled files are for {checkout.folder.name}, and ", told)
    assert checkout.run("-c", described) == "compiled"


def test_where_nothing_was_compiled_it_says_so(checkout: Checkout) -> None:
    shutil.rmtree(checkout.folder)
    assert checkout.look() == f"21 interpreted: not compiled yet{REMEDY}"


def test_a_traceback_shows_the_lines_of_the_source(checkout: Checkout) -> None:
    told = checkout.run("-c", FAILING)
    number = SMALL.splitlines().index("    return 1 // (number - number)  # never do this") + 1
    assert f'File "proxyd/small.py", line {number}, in fail' in told
    assert "    return 1 // (number - number)  # never do this" in told


def test_this_checkout_runs_all_of_its_modules_one_way() -> None:
    suffix = ".so" if finder.way() == "compiled" else ".py"
    assert {import_module(name).__file__.endswith(suffix) for name in HOT} == {True}


def test_a_module_is_found_in_the_library_and_its_text_in_its_source(checkout: Checkout) -> None:
    made = finder.CompiledFinder(str(checkout.root), {})
    made._library = str(checkout.library)
    made._why = ""  # as it decides where they can be loaded
    assert made.find_spec("proxyd.wiring.daemon") is None
    spec = made.find_spec(HOT[0])
    assert spec is not None
    assert spec.origin == str(checkout.library)
    loader = finder.CompiledLoader("proxyd.small", spec.origin, str(checkout.root))
    assert loader.get_source("proxyd.small") == SMALL
    checkout.small.write_bytes(b"# caf\xe9\n")
    assert loader.get_source("proxyd.small") is None
    checkout.small.unlink()
    assert loader.get_source("proxyd.small") is None
