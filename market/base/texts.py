"""Texts of strangers that other people read: they have no characters that hide or turn others."""

import unicodedata

# Letters and marks without a shape, which `str.isprintable` takes: fillers of Hangul, a joiner,
# vowels of Khmer, the empty pattern of Braille, a filler of Khitan, a note without a head, and the
# selectors of variants.
_SHAPELESS = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U00016fe4\U0001d159"
    + "".join(map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)
_LINES = frozenset("\n\r\t")
# Joiners, which Persian, the scripts of India, and emoji need inside of words.
_JOINERS = frozenset("\u200c\u200d")


def can_be_shown(text: str) -> bool:
    """Return whether the lines of a text have no control characters, also none of directions.

    People write spaces of any width, and joiners.
    """
    return all(
        each.isprintable()
        or each in _LINES
        or each in _JOINERS
        or unicodedata.category(each) == "Zs"
        for each in text
    )


def shows_nothing(text: str) -> bool:
    """Return whether no character of a text has a shape, so that it is no name."""
    return all(each in _SHAPELESS or each.isspace() or not each.isprintable() for each in text)
