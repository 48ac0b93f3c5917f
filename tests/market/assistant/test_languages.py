"""The language of an answer, and that the service has every text in each language."""

import string

from support.base.cases import cases

from market.assistant.languages import LANGUAGES, language_of
from market.assistant.phrases import PHRASES, phrase


@cases(
    ("asked", "message", "header", "language"),
    [
        ("ko", "Bakiyem ne kadar?", "ru", "ko"),
        (None, "Bakiyem ne kadar?", "ko", "tr"),
        (None, "nasil calisiyor bu", "", "tr"),
        (None, "Çok güzel, ışık için", "", "tr"),
        (None, "сколько у меня денег", "en", "ru"),
        (None, "잔액이 얼마예요?", "en", "ko"),
        (None, "What is my balance?", "ru", "en"),
        (None, "12 + 30", "ru", "ru"),
        (None, "", "tr-TR,tr;q=0.9,en-US;q=0.8", "tr"),
        (None, "", "de, en;q=0.3, ko;q=0.7", "ko"),
        (None, "", "fr", "en"),
        (None, "", "*", "en"),
        (None, "", "tr;q=0", "en"),
        (None, "", ";;;q=x,,,tr;q=2" * 1000, "en"),
        (None, "", "", "en"),
    ],
)
def test_the_language_is_the_caller_s(asked: str, message: str, header: str, language: str) -> None:
    assert language_of(asked, message, header) == language  # type: ignore[arg-type]


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def test_every_language_says_everything_with_the_same_facts() -> None:
    assert set(PHRASES) == set(LANGUAGES)
    english = {name: fields(text) for name, text in PHRASES["en"].items()}
    for language, phrases in PHRASES.items():
        assert {name: fields(text) for name, text in phrases.items()} == english, language


def test_no_phrase_is_left_in_another_language() -> None:
    for name, text in PHRASES["en"].items():
        assert sum(phrases[name] == text for phrases in PHRASES.values()) == 1, name


def test_words_in_braces_are_filled_in() -> None:
    assert phrase("en", "devices", count=2, online=1) == "You have 2 worker devices; 1 are online."
    assert "/api/jobs/{job_id}/accept" in phrase("en", "jobs_help")
