"""Messages about mistakes in a setting: the expected value, and the present one."""

import msgspec
import pytest
from support.base.cases import cases

from config.expected import SHOWN_MAX_CHARACTERS, mistake
from config.load import SettingsError, load
from config.secrets import SECRETS
from config.settings import PROCESSES_MAX, Settings


@cases("section", msgspec.structs.fields(Settings))
def test_every_setting_names_its_allowed_values(section: msgspec.structs.FieldInfo) -> None:
    for field in msgspec.structs.fields(section.type):
        name = f"{section.name}.{field.name}"
        words = mistake(name, field.type, "?", is_text=False)
        assert words.startswith("expected ")
        assert ("got" in words) == (name not in SECRETS)


def test_a_number_out_of_bounds_is_refused_with_both_bounds() -> None:
    with pytest.raises(SettingsError) as caught:
        load(None, {"PROXYD_PROXY__PROCESSES": "65"})
    assert caught.value.problems == [
        f"PROXYD_PROXY__PROCESSES: expected a whole number from 1 to {PROCESSES_MAX}, got '65'"
    ]


@cases("text", ["maybe", "2", ""])
def test_a_switch_is_true_or_false(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(None, {"PROXYD_API__CONSOLE": text})
    assert caught.value.problems == [f"PROXYD_API__CONSOLE: expected true or false, got {text!r}"]
    assert load(None, {"PROXYD_API__CONSOLE": "true"}).api.console


@cases("name", sorted(SECRETS))
def test_a_secret_is_not_shown(name: str) -> None:
    assert mistake(name, str, 123456, is_text=False) == "expected text"


def test_a_long_value_is_cut_off() -> None:
    words = mistake("log.level", str, ["x" * 1_000_000], is_text=False)
    assert len(words) == len("expected text, got …") + SHOWN_MAX_CHARACTERS
