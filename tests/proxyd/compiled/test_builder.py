"""`make setup` compiles where it can, prints its result in a line, and fails nowhere."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support.daemons.process import ROOT
from support.machines.small import CONSTANTS, NAMES, SMALL, Checkout, needs_compiler

from proxyd.compiled.builder import COST, Builder, reason
from proxyd.compiled.toolchain import Toolchain


@pytest.fixture
def bare(tmp_path: Path) -> Checkout:
    """A small checkout that was never compiled."""
    checkout = Checkout(tmp_path / "bare")
    checkout.write()
    return checkout


def nonsense(checkout: Checkout) -> str:
    """Return the path of a compiler that succeeds always, and makes no library."""
    compiler = checkout.root / "cc"
    compiler.write_text('#!/bin/sh\nwhile test "$1" != -o; do shift; done\necho nonsense > "$2"\n')
    compiler.chmod(0o755)
    return str(compiler)


def renew(checkout: Checkout) -> None:
    """Have everything done anew, with the compiled modules in place."""
    with (checkout.root / "proxyd" / "compiled" / "generate.py").open("a") as recipe:
        recipe.write("# otherwise\n")


@pytest.mark.long
def test_compiled_modules_are_not_compiled_again(checkout: Checkout) -> None:
    before = checkout.library.stat()
    assert checkout.build() == ""
    assert checkout.library.stat() == before


@pytest.mark.long
def test_compiled_modules_stay_when_the_compiler_has_gone(checkout: Checkout) -> None:
    assert checkout.build(PATH=str(checkout.root)) == ""
    assert checkout.look() == "21 compiled"


@pytest.mark.long
def test_an_edit_compiles_its_module_anew(checkout: Checkout) -> None:
    compiled = len(re.findall(r" -c ", checkout.log))
    checkout.small.write_text(SMALL.replace("+ BASE", "- BASE"))
    assert checkout.build().startswith("compiled: 2 modules of the data path, in ")
    assert checkout.look() == "19 compiled"
    assert 0 < len(re.findall(r" -c ", checkout.log)) < compiled / 2


@pytest.mark.long
def test_only_a_step_that_takes_a_minute_is_announced(checkout: Checkout) -> None:
    announced: list[str] = []
    headers = Path(sysconfig.get_path("include"))

    def build(**variables: str) -> str:
        environment = checkout.environment(variables)
        root = checkout.root
        return Builder(root, root, environment, headers, NAMES, announced.append).build()

    assert build() == ""
    assert announced == []
    checkout.small.write_text(SMALL.replace("+ BASE", "- BASE"))
    assert "there is no C compiler" in build(CC="no-such-cc")
    assert announced == []
    assert build().startswith("compiled: 2 modules")
    assert announced == ["compiling the data path: this takes some minutes on a small machine"]


def test_a_compiler_that_is_killed_is_named_with_the_signal(bare: Checkout) -> None:
    """As the kernel kills one for want of memory."""
    needs_compiler()
    compiler = bare.root / "cc"
    compiler.write_text("#!/bin/sh\nkill -KILL $$\n")
    compiler.chmod(0o755)
    assert ": the C compiler failed (signal 9); its output is in " in bare.build(CC=str(compiler))


def test_a_compiler_that_fails_is_named(bare: Checkout) -> None:
    needs_compiler()
    told = bare.build(CC="/bin/false")
    why = f"the C compiler failed (status 1); its output is in {bare.log_path}"
    assert told == f"proxyd runs interpreted: {why}; {COST}"
    assert bare.look() == f"21 interpreted: {why}; `make setup` compiles it"
    assert "$ /bin/false " in bare.log


@pytest.mark.long
def test_modules_that_cannot_be_renewed_are_used_as_they_are(checkout: Checkout) -> None:
    before = checkout.manifest.read_bytes()
    told = checkout.build(CC="/bin/false")
    why = f"the C compiler failed (status 1); its output is in {checkout.log_path}"
    assert told == f"compiled: as before, because it cannot be done anew: {why}"
    assert checkout.manifest.read_bytes() == before
    assert checkout.look() == "21 compiled"
    renew(checkout)
    assert checkout.build().startswith("compiled: 2 modules"), "it is tried again"


@pytest.mark.long
def test_stale_modules_that_cannot_be_renewed_are_not_used(checkout: Checkout) -> None:
    checkout.small.write_text(SMALL.replace("+ BASE", "- BASE"))
    assert checkout.build(CC="/bin/false").startswith("proxyd runs interpreted: the C compiler ")
    assert checkout.look().startswith("19 interpreted: the C compiler failed (status 1); ")
    assert checkout.build().startswith("compiled: 2 modules"), "it is tried again"


@pytest.mark.long
def test_modules_that_cannot_be_loaded_replace_no_other(checkout: Checkout) -> None:
    before = sorted(path.name for path in checkout.folder.iterdir())
    told = checkout.build(CC=nonsense(checkout))
    assert told.startswith("compiled: as before, because it cannot be done anew: loading what was ")
    assert sorted(path.name for path in checkout.folder.iterdir()) == before
    assert checkout.look() == "21 compiled"


@pytest.mark.long
def test_a_library_stays_until_the_one_after_it_has_a_successor(checkout: Checkout) -> None:
    """A process that is starting may have read the manifest that names it."""
    libraries = [checkout.library]
    for base in (5, 7):
        checkout.constants.write_text(CONSTANTS.replace("= 1", f"= {base}"))
        assert checkout.build().startswith("compiled: ")
        assert checkout.library not in libraries
        libraries.append(checkout.library)
        assert checkout.look() == f"{20 + base} compiled"
        there = {path for path in checkout.folder.iterdir() if path.suffix == ".so"}
        assert there == {*libraries[-2:]}
    assert not list(checkout.folder.glob("*.part"))


@pytest.mark.long
def test_a_compiler_that_makes_nonsense_is_found_out(bare: Checkout) -> None:
    needs_compiler()
    assert "loading what was compiled failed (status 1); " in bare.build(CC=nonsense(bare))
    assert bare.look().startswith("21 interpreted: loading what was compiled failed (status 1); ")


def test_without_a_compiler_it_names_the_package_to_install(bare: Checkout) -> None:
    told = bare.build(PATH=str(bare.root))
    assert re.fullmatch(
        r"proxyd runs interpreted: there is no C compiler \(.*cc.*\); apt-get install gcc; "
        + re.escape(COST),
        told,
    )
    assert bare.look().startswith("21 interpreted: there is no C compiler")
    assert "no C compiler (no-such-cc)" in bare.build(CC="no-such-cc")


def test_without_headers_it_names_the_package_to_install(bare: Checkout) -> None:
    needs_compiler()
    variables = {name: value for name, value in os.environ.items() if name != "PROXYD_INTERPRETED"}
    told = Builder(bare.root, bare.root, variables, bare.root / "none").build()
    missing = f"Python's headers are missing ({bare.root / 'none'}); apt-get install python3-dev"
    assert told == f"proxyd runs interpreted: {missing}; {COST}"
    assert bare.look() == f"21 interpreted: {missing}; `make setup` compiles it"


@pytest.mark.long
def test_a_source_that_cannot_be_compiled_is_left_to_python(bare: Checkout) -> None:
    needs_compiler()
    bare.small.write_text(SMALL.replace("-> int", "-> str"))
    assert "proxyd runs interpreted: mypyc failed (status 1); " in bare.build()
    assert "proxyd/small.py:7: error: " in bare.log
    assert bare.look().startswith("21 interpreted: mypyc failed (status 1); ")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"def (", "invalid syntax"),
        (b"caf\xe9 = 1\n", "codec can't decode byte 0xe9"),
        (b"one = 1\n\0", "null bytes"),
    ],
)
def test_an_import_that_is_not_python_is_named(bare: Checkout, content: bytes, why: str) -> None:
    bare.constants.write_bytes(content)
    told = bare.build()
    assert told.startswith("proxyd runs interpreted: proxyd/constants.py is not Python: ")
    assert why in told
    assert "\n" not in told


@pytest.mark.parametrize("variable", ["CC", "CFLAGS"])
def test_variables_that_no_shell_understands_are_named(bare: Checkout, variable: str) -> None:
    needs_compiler()
    why = f"{variable} cannot be understood: No closing quotation"
    assert bare.build(**{variable: 'cc "'}) == f"proxyd runs interpreted: {why}; {COST}"
    assert bare.look() == f"21 interpreted: {why}; `make setup` compiles it"


@pytest.mark.long
def test_a_blank_compiler_is_none_that_was_named(checkout: Checkout) -> None:
    assert checkout.build(CC=" ") == ""


@pytest.mark.parametrize("plan", ["{", "[]", '{"flags": [], "includes": 1}'])
def test_a_plan_that_is_damaged_is_named(bare: Checkout, plan: str) -> None:
    needs_compiler()
    generate = bare.root / "proxyd" / "compiled" / "generate.py"
    generate.write_text(f"import sys\nopen(sys.argv[1] + '/plan.json', 'w').write({plan!r})\n")
    assert re.match(r"proxyd runs interpreted: .*/plan.json is damaged: ", bare.build())


def test_a_reason_is_one_line_that_a_manifest_can_hold(bare: Checkout) -> None:
    headers = bare.root / "caf\xe9\nof somebody"
    Builder(bare.root, bare.root, {**os.environ, "PROXYD_INTERPRETED": ""}, headers).build()
    if shutil.which("cc"):
        assert "caf\\xe9 of somebody); apt-get install python3-dev" in bare.look()


def test_a_folder_of_another_user_is_named_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "build" / "lock"
    told = reason(PermissionError(13, "Permission denied", str(path)))
    assert told == f"{path} may not be written: {tmp_path} belongs to {tmp_path.owner()}"


def test_a_folder_that_cannot_be_written_is_no_failure(bare: Checkout) -> None:
    needs_compiler()
    (bare.root / "build").write_text("not a folder")
    assert bare.build().startswith("proxyd runs interpreted: ")


def test_nothing_is_compiled_where_it_is_switched_off(bare: Checkout) -> None:
    told = bare.build(PROXYD_INTERPRETED="1")
    assert told == "proxyd runs interpreted: PROXYD_INTERPRETED is set; nothing was compiled"
    assert not (bare.root / "build").exists()


@pytest.fixture
def installed(tmp_path: Path) -> Checkout:
    """The same as a small checkout, at another place."""
    made = Checkout(tmp_path / "installed")
    made.root.mkdir()
    made.write()
    return made


@pytest.mark.long
def test_the_modules_of_the_checkout_are_installed_as_they_are(
    checkout: Checkout, installed: Checkout
) -> None:
    told = checkout.build(installed.root, CC="/bin/false")
    assert "the C compiler failed" in told, "it was made by another one"
    before = checkout.log
    told = checkout.build(installed.root)
    assert told == "compiled: 2 modules of the data path, as the checkout has them"
    assert checkout.log == before, "there was nothing to compile"
    assert installed.look() == "21 compiled"
    assert checkout.build(installed.root) == "compiled: as before; nothing has changed"


@pytest.mark.long
def test_an_installation_leaves_nothing_in_the_checkout(
    bare: Checkout, installed: Checkout
) -> None:
    """Root installs, and another user has checked out."""
    needs_compiler()
    before = sorted(bare.root.rglob("*"))
    told = bare.build(installed.root, PYTHONDONTWRITEBYTECODE="1")
    assert told.startswith("compiled: 2 modules of the data path, in ")
    assert installed.look() == "21 compiled"
    assert sorted(bare.root.rglob("*")) == before


def test_an_edited_installation_is_not_taken_for_the_compiled_one(
    checkout: Checkout, installed: Checkout
) -> None:
    installed.constants.write_text(CONSTANTS.replace("= 1", "= 5"))
    told = checkout.build(installed.root)
    why = f"{installed.constants} differs from {checkout.root}"
    assert told == f"proxyd runs interpreted: {why}; {COST}"
    assert installed.look() == f"25 interpreted: {why}; `make setup` compiles it"


@pytest.mark.long
def test_an_edit_meanwhile_is_found_out(checkout: Checkout) -> None:
    """The digests are those of the compiled sources, not of later edits."""
    words = Toolchain(os.environ, checkout.root).compiler
    # It has the name of the compiler, so that only the link is left to do.
    compiler = checkout.root / "first" / words[0]
    compiler.parent.mkdir()
    edit = f"sed -i 's/= 1/= 5/' {checkout.constants}"
    real = shutil.which(words[0])
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-shared*) {edit};; esac\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    renew(checkout)
    told = checkout.build(PATH=f"{compiler.parent}{os.pathsep}{os.environ['PATH']}")
    why = "proxyd/constants.py was edited meanwhile"
    assert told == f"proxyd runs interpreted: {why}; {COST}"
    assert checkout.look() == f"25 interpreted: {why}; `make setup` compiles it"


def make_test(checkout: Checkout, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `make test`, with programs in the place of the tests and checks that always succeed."""
    shutil.copy2(ROOT / "Makefile", checkout.root)
    (checkout.root / "clusters").mkdir(exist_ok=True)
    shutil.copy2(ROOT / "clusters" / "pyproject.toml", checkout.root / "clusters")
    programs = checkout.root / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("ruff", "mypy", "lint-imports", "oxlint"):
        (programs / name).symlink_to("/bin/true")
    python = f'#!/bin/sh\ntest "$2" != pytest || exec echo the suite\nexec {sys.executable} "$@"\n'
    version = "from proxyd.compiled import finder; print(f'proxyd ({finder.description()})')"
    proxyd = f'#!/bin/sh\nexec {sys.executable} -c "{version}"\n'
    for name, text in (("python", python), ("proxyd", proxyd)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (checkout.root / ".venv" / ".complete").touch()
    return subprocess.run(
        ["make", "test"],
        cwd=checkout.root,
        env=checkout.environment(variables),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.long
def test_the_tests_fail_where_modules_could_be_compiled_and_are_not(checkout: Checkout) -> None:
    checkout.small.write_text(SMALL.replace("-> int", "-> str"))
    done = make_test(checkout)
    assert done.returncode != 0
    told = "a C compiler is here, and the data path is not compiled: mypyc failed (status 1); "
    assert done.stderr.startswith(told)
    assert "the suite" not in done.stdout


def test_the_tests_fail_where_compiled_modules_are_stale(checkout: Checkout) -> None:
    done = make_test(checkout, CFLAGS="-no-such-flag")
    assert done.returncode != 0
    assert "is not compiled: what is compiled was made in another way than it " in done.stderr


def test_the_tests_end_with_the_kind_of_modules_that_they_tested(checkout: Checkout) -> None:
    done = make_test(checkout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the suite\n") == 2
    assert done.stdout.endswith("\nmake test: every test that ran passed, of proxyd (compiled)\n")


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"CC": "no-such-cc"}, "there is no C compiler (no-such-cc); "),
        ({"PROXYD_INTERPRETED": "1"}, "PROXYD_INTERPRETED is set"),
    ],
)
def test_the_tests_may_pass_where_nothing_can_be_compiled(
    bare: Checkout, variables: dict[str, str], why: str
) -> None:
    done = make_test(bare, **variables)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"make test: every test that ran passed, of proxyd (interpreted: {why}")
