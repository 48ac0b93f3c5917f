"""Language of an answer: the caller's choice, else the language of the message."""

import re
from collections.abc import Mapping
from typing import Literal, get_args

Language = Literal["tr", "en", "ru", "ko"]
LANGUAGES: Mapping[str, Language] = {each: each for each in get_args(Language)}

_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]")
_CYRILLIC = re.compile("[\u0400-\u04ff]")
_TURKISH = re.compile("[ğĞışŞİ]")
_WORD = re.compile(r"[^\W\d_]+")
_PREFERENCE = re.compile(
    r"\s*([A-Za-z]{1,8})(?:-[\w-]*)?\s*(?:;\s*q\s*=\s*([01](?:\.\d{0,3})?))?\s*"
)

_TURKISH_WORDS = frozenset(
    _WORD.findall(
        "merhaba selam nasil nasıl nedir kadar bakiye bakiyem kac kaç icin için bir bu benim var "
        "yok mi mı oturum cihaz odul ödül davet hesabim yardim ne neler nerede lutfen"
    )
)
_ENGLISH_WORDS = frozenset(
    _WORD.findall(
        "the is are what how my you your do does can i a an of to hello hi help please much many "
        "who where when why balance and show tell me have"
    )
)


def language_of(chosen: Language | None, message: str, accept_language: str) -> Language:
    """Return the language to answer in.

    Args:
        chosen: the caller's choice; it wins.
        message: the caller's text, or ""; its script and commonest words decide.
        accept_language: the header of that name (RFC 9110, section 12.5.4), "" for none.
    """
    return chosen or _written(message) or _preferred(accept_language) or "en"


def _written(message: str) -> Language | None:
    if _HANGUL.search(message):
        return "ko"
    if _CYRILLIC.search(message):
        return "ru"
    if _TURKISH.search(message):
        return "tr"
    words = {word.lower() for word in _WORD.findall(message[:2_000])}
    turkish, english = len(words & _TURKISH_WORDS), len(words & _ENGLISH_WORDS)
    if turkish == english:
        return None
    return "tr" if turkish > english else "en"


def _preferred(accept_language: str) -> Language | None:
    best: Language | None = None
    best_weight = 0.0
    for choice in accept_language[:500].split(","):
        match = _PREFERENCE.fullmatch(choice)
        language = LANGUAGES.get(match[1].lower()) if match is not None else None
        if match is None or language is None:
            continue
        weight = float(match[2] or 1)
        if weight > best_weight:
            best, best_weight = language, weight
    return best
