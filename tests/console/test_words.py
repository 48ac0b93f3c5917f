"""Words of the console: every key in every language, and every word that a module asks for."""

import json
import re
from functools import cache
from typing import Any

from support.base.cases import cases

from api.console import FOLDER
from api.http.errors import Transport
from market.base.errors import Code
from market.staff.base.roles import Action

WORDS = FOLDER / "words"
LANGUAGES = ("en", "tr", "ru", "ko")
# As Intl.PluralRules of a browser says; a test asks one.
FORMS = {
    "en": {"one", "other"},
    "tr": {"one", "other"},
    "ru": {"one", "few", "many", "other"},
    "ko": {"other"},
}
AREAS = sorted({path.name.split(".")[0] for path in WORDS.iterdir()} - {"errors"})
PLACE = re.compile(r"\{(\w+)\}")
# A key of the words in a module: t("key"), t(`key.${what}`), title = "key".
ASKED = re.compile(r"""\bt\(\s*["`]([\w.:-]+)(\$\{|["`])|title = "([\w.]+)";""")


@cache
def words(area: str, language: str) -> dict[str, Any]:
    found = json.loads((WORDS / f"{area}.{language}.json").read_text())
    assert isinstance(found, dict)
    return found


def texts(value: Any) -> list[str]:
    return list(value.values()) if isinstance(value, dict) else [value]


def places(value: Any) -> set[str]:
    return {name for text in texts(value) for name in PLACE.findall(text)}


@cases("area", AREAS)
@cases("language", LANGUAGES)
def test_every_key_is_there_with_the_same_places_and_all_forms(area: str, language: str) -> None:
    english, other = words(area, "en"), words(area, language)
    assert sorted(other) == sorted(english)
    for key, value in other.items():
        assert all(text.strip() == text and text for text in texts(value)), key
        assert places(value) == places(english[key]), key
        assert isinstance(value, dict) == isinstance(english[key], dict), key
        if isinstance(value, dict):
            assert set(value) == FORMS[language], key


@cases("language", ["tr", "ru", "ko"])
def test_every_refusal_has_its_sentence(language: str) -> None:
    codes = {each.word for each in (*Code, *Transport)}
    assert codes - set(words("errors", language)) == set()
    assert set(words("errors", language)) - codes == set()
    for code, text in words("errors", language).items():
        assert text.endswith((".", "!", "?")), code


def test_each_act_that_may_be_about_a_user_has_its_words() -> None:
    others = ("search", "search.address", "search.email", "payout.list", "payout.export")
    rooms = ("staff.", "site.", "status.", "log.", "approval.list", "rule.")
    acts = {each for each in Action if each not in others and not each.startswith(rooms)}
    named = {
        key.removeprefix("account.act.")
        for key in words("account", "en")
        if key.startswith("account.act.")
    }
    assert named == acts | {Action.STAFF_DECLARE}


@cases("language", ["tr", "ru", "ko"])
def test_a_language_is_not_english_in_disguise(language: str) -> None:
    same = [
        key
        for area in AREAS
        for key, value in words(area, language).items()
        if value == words(area, "en")[key] and re.search("[a-z]{4,} [a-z]{3,}", str(value))
    ]
    assert same == []


MODULES = [path.relative_to(FOLDER).as_posix() for path in sorted(FOLDER.rglob("*.js"))]


@cases("name", MODULES)
def test_a_module_asks_for_words_that_are_there(name: str) -> None:
    text = (FOLDER / name).read_text()
    area = re.search(r'^export const words = "(\w+)";', text, re.MULTILINE)
    known = set().union(*(words(each, "en") for each in AREAS))
    if area is not None:
        known = {*words("common", "en"), *words(area[1], "en")}
    for key, end, title in ASKED.findall(text):
        wanted = key or title
        is_there = wanted in known
        if end == "${":
            is_there = any(each.startswith(wanted) for each in known)
        assert is_there, wanted


@cases("area", [*AREAS, "errors"])
@cases("language", LANGUAGES)
def test_words_are_sorted_as_they_are_read_and_small(area: str, language: str) -> None:
    path = WORDS / f"{area}.{language}.json"
    if area == "errors" and language == "en":
        assert not path.exists()  # English is the server's own text
        return
    pairs = json.loads(path.read_text(), object_pairs_hook=list)
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names))
    assert path.stat().st_size <= 40_000
