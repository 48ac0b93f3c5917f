"""Settings from a file and the environment: precedence, and one report of all mistakes."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.base.cases import cases

from config.load import SettingsError, load
from config.settings import Settings

Write = Callable[[str], Path]

FIELDS = [
    (section.name, field.name)
    for section in msgspec.structs.fields(Settings)
    for field in msgspec.structs.fields(section.type)
]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a settings file."""

    def written(text: str) -> Path:
        path = tmp_path / "proxyd.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def problems(path: Path | None = None, /, **environment: str) -> list[str]:
    """Return the mistakes that loading reports."""
    with pytest.raises(SettingsError) as caught:
        load(path, environment)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def setting(settings: Settings, section: str, key: str) -> Any:
    """Return one setting."""
    return getattr(getattr(settings, section), key)


def as_text(value: object) -> str:
    """Write a setting as the environment holds it."""
    is_json = isinstance(value, tuple | dict)
    return msgspec.json.encode(value).decode() if is_json else str(value)


# --- precedence --------------------------------------------------------------------------------


def test_nothing_given_means_the_defaults() -> None:
    assert load(None, {}) == Settings()


def test_an_empty_file_means_the_defaults(write: Write) -> None:
    assert load(write(""), {}) == Settings()
    assert load(write("[api]\n[proxy]\n[log]\n"), {}) == Settings()


def test_a_file_wins_over_the_defaults(write: Write) -> None:
    settings = load(write('[api]\nport = 9000\n[log]\nlevel = "debug"\n'), {})
    assert settings.api.port == 9000
    assert settings.log.level == "debug"
    assert settings.api.host == Settings().api.host
    assert settings.proxy == Settings().proxy


def test_the_environment_wins_over_the_file(write: Write) -> None:
    path = write('[api]\nport = 9000\nhost = "127.0.0.2"\n')
    settings = load(path, {"PROXYD_API__PORT": "9001"})
    assert settings.api.port == 9001
    assert settings.api.host == "127.0.0.2"


def test_the_environment_is_enough_by_itself() -> None:
    settings = load(None, {"PROXYD_STORAGE__POOL_SIZE": "3"})
    assert settings.storage.pool_size == 3


def test_a_value_of_the_file_that_is_overridden_need_not_be_right(write: Write) -> None:
    assert load(write('[api]\nport = "x"\n'), {"PROXYD_API__PORT": "1"}).api.port == 1


@cases(
    "variable",
    [
        "PATH",
        "PROXYD_HOME",
        "PROXYD",
        "PROXYD_",
        "MYPROXYD_API__PORT",
        "API__PORT",
        "proxyd_api__port",
    ],
)
def test_other_variables_are_left_alone(variable: str) -> None:
    assert load(None, {variable: "nonsense"}) == Settings()


# --- types -------------------------------------------------------------------------------------


@cases(
    ("toml", "section", "key", "value"),
    [
        ("port = 0", "api", "port", 0),
        ("port = 65535", "proxy", "port", 65535),
        ('base_url = "https://api.example.com"', "api", "base_url", "https://api.example.com"),
        ('allow = ["10.0.0.0/8", "fd00::/8"]', "egress", "allow", ("10.0.0.0/8", "fd00::/8")),
        ("blocked_ports = []", "egress", "blocked_ports", ()),
        ("blocked_ports = [25]", "egress", "blocked_ports", (25,)),
        ("dial_seconds = 2.5", "limits", "dial_seconds", 2.5),
        ("dial_seconds = 2", "limits", "dial_seconds", 2.0),
        (
            "price_per_gb_default_usd = 1.10",
            "market",
            "price_per_gb_default_usd",
            Decimal("1.10"),
        ),
        ("price_per_gb_default_usd = 2", "market", "price_per_gb_default_usd", Decimal(2)),
        ("price_per_gb_floor_usd = 0.000001", "market", "price_per_gb_floor_usd", Decimal("1e-6")),
        ('format = "json"', "log", "format", "json"),
    ],
)
def test_each_type_is_read_from_a_file(
    toml: str, section: str, key: str, value: object, write: Write
) -> None:
    found = setting(load(write(f"[{section}]\n{toml}\n"), {}), section, key)
    assert found == value
    assert type(found) is type(value)


@cases(
    ("text", "section", "key", "value"),
    [
        ("0", "api", "port", 0),
        ("65535", "proxy", "port", 65535),
        ("", "api", "base_url", ""),
        ("https://api.example.com", "api", "base_url", "https://api.example.com"),
        ("12345", "proxy", "public_host", "12345"),
        ('["10.0.0.0/8", "fd00::/8"]', "egress", "allow", ("10.0.0.0/8", "fd00::/8")),
        ("[]", "egress", "blocked_ports", ()),
        ("[25,26]", "egress", "blocked_ports", (25, 26)),
        ("2.5", "limits", "dial_seconds", 2.5),
        ("2", "limits", "dial_seconds", 2.0),
        ("1.10", "market", "price_per_gb_default_usd", Decimal("1.10")),
        ("json", "log", "format", "json"),
    ],
)
def test_each_type_is_read_from_the_environment(
    text: str, section: str, key: str, value: object
) -> None:
    settings = load(None, {f"PROXYD_{section}__{key}".upper(): text})
    found = setting(settings, section, key)
    assert found == value
    assert type(found) is type(value)


@cases(("section", "key"), FIELDS)
def test_every_setting_can_be_given_in_the_environment(
    section: str, key: str, write: Write
) -> None:
    default = setting(Settings(), section, key)
    variable = f"PROXYD_{section}__{key}".upper()
    assert load(None, {variable: as_text(default)}) == Settings()
    wrong_in_the_file = write(f"[{section}]\n{key} = 1979-05-27\n")
    assert load(wrong_in_the_file, {variable: as_text(default)}) == Settings()


def test_a_price_is_exact_to_its_last_digit(write: Write) -> None:
    path = write("[market]\nprice_per_gb_default_usd = 0.123457\n")
    assert load(path, {}).market.price_per_gb_default_usd == Decimal("0.123457")


# --- mistakes ----------------------------------------------------------------------------------

PORT = "expected a whole number from 0 to 65535"
SECONDS = "expected a number above 0 and up to 86400"
TEXTS = 'expected a list of texts, written as JSON: ["one", "two"]'


@cases(
    ("toml", "name", "words"),
    [
        ('[api]\nport = "8080"', "api.port", f"{PORT}, got '8080'"),
        ("[api]\nport = 8080.0", "api.port", f"{PORT}, got 8080.0"),
        ("[api]\nport = true", "api.port", f"{PORT}, got true"),
        ("[api]\nport = 65536", "api.port", f"{PORT}, got 65536"),
        ("[api]\nport = -1", "api.port", f"{PORT}, got -1"),
        ("[api]\nport = 9999999999999999", "api.port", f"{PORT}, got 9999999999999999"),
        ("[proxy]\nprocesses = 65", "proxy.processes", "a whole number from 1 to 64, got 65"),
        ("[api]\nhost = 1", "api.host", "expected text, got 1"),
        ("[api]\nbody_max_bytes = 1", "api.body_max_bytes", "number from 1024 to 67108864, got 1"),
        ("[limits]\nidle_seconds = 0", "limits.idle_seconds", f"{SECONDS}, got 0"),
        ("[limits]\nidle_seconds = nan", "limits.idle_seconds", f"{SECONDS}, got nan"),
        ("[limits]\nidle_seconds = inf", "limits.idle_seconds", f"{SECONDS}, got inf"),
        ("[limits]\nidle_seconds = 1e999", "limits.idle_seconds", f"{SECONDS}, got 1E+999"),
        ("[limits]\nidle_seconds = true", "limits.idle_seconds", f"{SECONDS}, got true"),
        ("[limits]\ndials_waiting = 0", "limits.dials_waiting", "number of at least 1, got 0"),
        ('[egress]\nallow = "10.0.0.0/8"', "egress.allow", "list of texts, got '10.0.0.0/8'"),
        ("[egress]\nallow = [10]", "egress.allow", "expected a list of texts, got [10]"),
        (
            "[egress]\nblocked_ports = [0]",
            "egress.blocked_ports",
            "expected a list of whole numbers from 1 to 65535, got [0]",
        ),
        (
            "[assistant]\nconfidence_min = 1.5",
            "assistant.confidence_min",
            "expected a number from 0 to 1, got 1.5",
        ),
        (
            "[assistant]\nrewards = { giving = -1 }",
            "assistant.rewards",
            "expected a table of whole numbers from 0 to 1000000, got {'giving': -1}",
        ),
        (
            '[log]\nlevel = "loud"',
            "log.level",
            "expected one of debug, info, warning, error, got 'loud'",
        ),
        (
            '[market]\nprice_per_gb_floor_usd = "1"',
            "market.price_per_gb_floor_usd",
            "a number, got '1'",
        ),
        ("[market]\nprice_per_gb_floor_usd = true", "market.price_per_gb_floor_usd", "got true"),
        ("[market]\nsession_days = 0", "market.session_days", "number from 1 to 3650, got 0"),
        ("[auth]\ntoken_hours = 721", "auth.token_hours", "number from 1 to 720, got 721"),
    ],
)
def test_a_wrong_value_in_a_file_is_named(toml: str, name: str, words: str, write: Write) -> None:
    (problem,) = problems(write(toml + "\n"))
    assert problem.startswith(f"{name}: ")
    assert words in problem


@cases(
    ("variable", "text", "words"),
    [
        ("PROXYD_API__PORT", "http", f"{PORT}, got 'http'"),
        ("PROXYD_API__PORT", "", f"{PORT}, got ''"),
        ("PROXYD_API__PORT", "65536", f"{PORT}, got '65536'"),
        ("PROXYD_API__PORT", "true", PORT),
        ("PROXYD_LIMITS__IDLE_SECONDS", "nan", f"{SECONDS}, got 'nan'"),
        ("PROXYD_LIMITS__IDLE_SECONDS", "-1", f"{SECONDS}, got '-1'"),
        ("PROXYD_LOG__FORMAT", "xml", "expected one of text, json, got 'xml'"),
        (
            "PROXYD_EGRESS__BLOCKED_PORTS",
            '["25"]',
            "whole numbers from 1 to 65535, written as JSON",
        ),
        ("PROXYD_EGRESS__BLOCKED_PORTS", "25", "written as JSON: [1, 2], got '25'"),
        ("PROXYD_EGRESS__ALLOW", "", TEXTS),
        ("PROXYD_EGRESS__ALLOW", "10.0.0.0/8", TEXTS + ", got '10.0.0.0/8'"),
        ("PROXYD_EGRESS__ALLOW", '"10.0.0.0/8"', TEXTS),
        ("PROXYD_EGRESS__ALLOW", "[a]", TEXTS),
        (
            "PROXYD_MARKET__GPU_RATES_USD",
            "A100=1",
            'a table of numbers, written as JSON: {"one": 1}',
        ),
        ("PROXYD_MARKET__PRICE_PER_GB_FLOOR_USD", "cheap", "expected a number, got 'cheap'"),
    ],
)
def test_a_wrong_value_in_the_environment_is_named_by_its_variable(
    variable: str, text: str, words: str
) -> None:
    (problem,) = problems(**{variable: text})
    assert problem.startswith(f"{variable}: ")
    assert words.lower() in problem.lower()


@cases(
    ("toml", "problem"),
    [
        ("[apis]\n", "apis: no such section; did you mean api?"),
        ("[xylophone]\n", "xylophone: no such section"),
        (
            "port = 1\n",
            (
                "port: belongs in a section; "
                "put it below [api] or [proxy] or [exits] or [apps] or [mail] or [staff]"
            ),
        ),
        ("trusted_proxies = []\n", "trusted_proxies: belongs in a section; put it below [api]"),
        ("[port]\n", "port: no such section"),
        ("[api]\nprot = 1\n", "api.prot: no such setting; did you mean port?"),
        ("[api]\nxylophone = 1\n", "api.xylophone: no such setting"),
        ("[api]\nPort = 1\n", "api.Port: no such setting; did you mean port?"),
        ("api = 1\n", "api: expected a section, written as [api]"),
        ("[[api]]\nport = 1\n", "api: expected a section, written as [api]"),
    ],
)
def test_an_unknown_name_in_a_file_is_named_with_a_hint(
    toml: str, problem: str, write: Write
) -> None:
    (found,) = problems(write(toml))
    assert found.partition(";")[0] == problem.partition(";")[0]
    assert ("did you mean" in found) == ("did you mean" in problem)
    assert found == problem


@cases(
    ("variable", "problem"),
    [
        ("PROXYD_APIS__PORT", "PROXYD_APIS__PORT: no section [apis]; did you mean api?"),
        ("PROXYD_XYLOPHONE__PORT", "PROXYD_XYLOPHONE__PORT: no section [xylophone]"),
        ("PROXYD_API__PROT", "PROXYD_API__PROT: no such setting; did you mean port?"),
        ("PROXYD_API__XYLOPHONE", "PROXYD_API__XYLOPHONE: no such setting"),
        ("PROXYD_API__", "PROXYD_API__: no such setting"),
        ("PROXYD_API__PORT__X", "PROXYD_API__PORT__X: no such setting; did you mean port?"),
    ],
)
def test_an_unknown_name_in_the_environment_is_named_with_a_hint(
    variable: str, problem: str
) -> None:
    assert problems(**{variable: "1"}) == [problem]


@cases("variable", ["PROXYD__PORT", "PROXYD__", "PROXYD___PORT"])
def test_a_variable_without_a_section_is_named(variable: str) -> None:
    (problem,) = problems(**{variable: "1"})
    assert problem.startswith(f"{variable}: ")


def test_three_mistakes_are_named_at_once(write: Write) -> None:
    path = write('[api]\nport = "x"\nprot = 1\n[log]\nlevel = "loud"\n')
    assert [problem.partition(":")[0] for problem in problems(path)] == [
        "api.port",
        "api.prot",
        "log.level",
    ]


def test_mistakes_of_the_file_and_of_the_environment_are_named_together(write: Write) -> None:
    path = write('[nosuch]\n[api]\nport = "x"\n')
    named = problems(
        path,
        PROXYD_API__HTSO="h",
        PROXYD_LOG__LEVEL="loud",
        PROXYD_NOSUCH__KEY="1",
        PROXYD_PROXY__PORT="70000",
    )
    assert {problem.partition(":")[0] for problem in named} == {
        "nosuch",
        "api.port",
        "PROXYD_API__HTSO",
        "PROXYD_LOG__LEVEL",
        "PROXYD_NOSUCH__KEY",
        "PROXYD_PROXY__PORT",
    }
    assert len(named) == 6


def test_a_setting_given_twice_and_wrong_is_named_once(write: Write) -> None:
    path = write("[api]\nport = 1\n")
    assert problems(path, PROXYD_API__PORT="x") == [f"PROXYD_API__PORT: {PORT}, got 'x'"]


def test_an_unknown_name_given_twice_is_named_where_it_stands(write: Write) -> None:
    path = write("[api]\nxylophone = 1\n")
    assert sorted(problems(path, PROXYD_API__XYLOPHONE="2")) == [
        "PROXYD_API__XYLOPHONE: no such setting",
        "api.xylophone: no such setting",
    ]


def test_contradictions_are_all_named(write: Write) -> None:
    path = write('[api]\ntls_cert = "cert.pem"\n[proxy]\nport = 8080\n[egress]\ndeny = ["x"]\n')
    assert {problem.partition(":")[0] for problem in problems(path)} == {
        "api.tls_key",
        "proxy.port",
        "egress.deny",
    }


def test_a_contradiction_that_the_environment_makes_is_found() -> None:
    (problem,) = problems(PROXYD_PROXY__PORT="8080")
    assert problem == "proxy.port: 8080 is already taken by api.port"


def test_a_wrong_type_does_not_hide_a_text_that_cannot_be_used(write: Write) -> None:
    path = write('[api]\nport = "x"\n[egress]\ndeny = ["nonsense"]\n')
    assert {problem.partition(":")[0] for problem in problems(path)} == {"api.port", "egress.deny"}


@cases(
    ("toml", "blamed"),
    [
        ('[api]\nport = "x"\n[proxy]\nport = 8080\n', "api.port"),
        (
            "[market]\nprice_per_gb_floor_usd = true\nprice_per_gb_default_usd = 0.05\n",
            "market.price_per_gb_floor_usd",
        ),
    ],
)
def test_a_default_that_replaces_a_wrong_value_contradicts_nothing(
    toml: str, blamed: str, write: Write
) -> None:
    assert [problem.partition(":")[0] for problem in problems(write(toml))] == [blamed]


@cases("unknown", ["egres", "e", "deny", "network"])
def test_an_unknown_section_hides_no_contradiction_that_its_name_is_a_part_of(
    unknown: str, write: Write
) -> None:
    path = write(f'[{unknown}]\n[egress]\ndeny = ["nonsense"]\n')
    assert [problem.partition(":")[0] for problem in problems(path)] == [unknown, "egress.deny"]


def test_a_price_beyond_any_number_is_a_mistake_like_others(write: Write) -> None:
    path = write("[market]\nprice_per_gb_default_usd = 1e99999999999999999999\n")
    (problem,) = problems(path)
    assert "price_per_gb_default_usd" in problem


# --- files that cannot be read -----------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing.toml"
    assert problems(path) == [f"{path}: cannot be read: No such file or directory"]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert problems(tmp_path) == [f"{tmp_path}: cannot be read: Is a directory"]


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "proxyd.toml"
    path.write_bytes(b"[api]\nhost = '\xff'\n")
    assert problems(path) == [f"{path}: is not UTF-8 text"]


@cases("text", ["[api", "port 1", "[api]\nport = 1\nport = 2\n", "[api]\n[api]"])
def test_a_file_that_is_not_toml_is_named_with_its_place(text: str, write: Write) -> None:
    path = write(text)
    (problem,) = problems(path)
    assert problem.startswith(f"{path}: is not TOML: ")
    assert "line" in problem or "end of document" in problem


def test_a_file_that_cannot_be_read_does_not_hide_the_environment(tmp_path: Path) -> None:
    named = problems(tmp_path / "missing.toml", PROXYD_API__PORT="x")
    assert len(named) == 2
    assert named[1].startswith("PROXYD_API__PORT: ")


@cases("variable", ["PROXYD_API_PORT", "PROXYD_LOG_LEVEL"])
def test_a_variable_with_one_underscore_too_few_is_named(variable: str) -> None:
    (problem,) = problems(**{variable: "1"})
    prefix, section, key = variable.split("_")
    assert problem == f"{variable}: did you mean {prefix}_{section}__{key}?"


def test_other_variables_of_the_same_name_are_left_alone() -> None:
    assert load(None, {"PROXYD_HOME": "/opt/proxyd", "PROXYD": "1"}) == load(None, {})


# --- messages about mistakes -------------------------------------------------------------------


def test_a_secret_of_the_wrong_type_is_not_shown(write: Write) -> None:
    assert problems(write("[mail]\npassword = 123456\n")) == ["mail.password: expected text"]


def test_a_number_too_long_to_be_written_is_a_mistake_like_any_other(write: Write) -> None:
    digits = "f" * 5000
    assert problems(write(f"[api]\nport = 0x{digits}\n")) == [
        "api.port: expected a whole number from 0 to 65535, got a number of thousands of digits"
    ]
    (idle,) = problems(write(f"[limits]\nidle_seconds = 0x{digits}\n"))
    assert idle.startswith("limits.idle_seconds: expected a number")
    (grammar,) = problems(write(f"[api]\nport = {'9' * 5000}\n"))
    assert "is not TOML" in grammar


def test_the_wrong_entry_of_a_long_list_is_named(write: Write) -> None:
    networks = ", ".join(f'"10.0.{number}.0/24"' for number in range(60))
    (problem,) = problems(write(f"[egress]\ndeny = [{networks}, 7]\n"))
    assert problem.endswith("; entry 61 is wrong")
