"""Names of GPUs: whether the one that a buyer wants is the one that a device has.

Drivers, shops and people write the same card in different ways: `NVIDIA GeForce RTX 4090`,
`rtx4090`, `4090`. A name is cut into words, without those that only say who makes it. All words of
the wanted name must be there. A word that makes it another card (`Ti`, `Laptop`, `MIG`) may only be
there if the buyer wants it. The bus and the memory may be left open: `A100` is also an
`A100-SXM4-80GB`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

NAMES_KEPT: Final = 4_096  # more models than are sold; a forgotten name is cut again
PAIRS_KEPT: Final = 16_384  # of a wanted name and a card's; a forgotten pair is compared again


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MAKERS: Final = _words("nvidia geforce quadro tesla amd radeon instinct intel arc")
# Words that do not distinguish cards.
_NOISE: Final = _words("gpu graphics with design generation edition r tm series card")
_DIFFERENT: Final = _words(
    "ti super d s m laptop maxq mig ada pro sff xt xtx gre xl grid max x xp v ii"
)
_BUSES: Final = ("pcie", "sxm", "nvl")
# Their drivers name the bus only where it is not SXM.
_SXM_UNSAID: Final = _words("h100 h200 h800 h20 b100 b200 b300")

# Beside one of these a number is a model.
_NUMBERED: Final = _words("rtx gtx gt rx xt xtx")
# Models that are recognised without a line beside them.
_MODELS: Final = _words(
    """
    a2 a10 a10g a16 a30 a40 a100 a800 a4000 a4500 a5000 a5500 a6000 a770 a750 b580 b60
    h20 h100 h200 h800 gh200 b100 b200 b300 gb200 gb300 gb10 l4 l20 l40 l40s t4 t4g t400 t1000
    v100 v100s p4 p40 p100 p1000 p2000 p4000 p5000 p6000 k80 m40 m60 k40
    mi50 mi60 mi100 mi210 mi250 mi250x mi300a mi300x mi325x mi350x mi355x
    w5700 w6600 w6800 w7500 w7600 w7700 w7800 w7900 a1000 a2000 orin thor
    1050 1060 1070 1080 1650 1660 2060 2070 2080 3050 3060 3070 3080 3090 4060 4070 4080 4090
    5050 5060 5070 5080 5090
    """
)

_COUNT: Final = re.compile(r"\s*([0-9]{1,3})\s*[x×*]\s+(?=\S)", re.IGNORECASE)
_MAX_Q: Final = re.compile(r"max[\s_-]?q\b")
_MEMORY: Final = re.compile(r"\b([0-9]{1,4})\s?(?:gb|gib|g)\b")
_PARTITION: Final = re.compile(r"\bmig\s+([0-9]g\.[0-9]{1,3}gb)")
_WORD: Final = re.compile(r"[a-z0-9.]+")
_NUMBER: Final = re.compile(r"a?[0-9]{3,4}")
_JOINED: Final = re.compile(
    r"(rtx|gtx|gt|rx|titan)?(a?[0-9]{3,4})(ti|super|xtx|xt|gre|d|s|m)?(super)?"
)


class _Name(NamedTuple):
    """A name in parts: `memory_gb` is 0 and `bus` empty where it does not say."""

    words: frozenset[str]
    makers: frozenset[str]
    memory_gb: int
    bus: str


@lru_cache(maxsize=PAIRS_KEPT)
def fits(wanted: str, name: str) -> bool:
    """Return whether a GPU of some name, as its driver has it, is the one that is wanted."""
    ours, theirs = _cut(wanted), _cut(name)
    if not ours.words:
        return _is_made_by(ours, theirs)
    if not ours.words <= theirs.words or (theirs.words - ours.words) & _DIFFERENT:
        return False
    if ours.memory_gb and theirs.memory_gb not in (0, ours.memory_gb):
        return False
    unsaid = "sxm" if theirs.words & _SXM_UNSAID else ""
    return ours.bus in ("", theirs.bus or unsaid)


def key(name: str) -> str:
    """Return the common key of all ways to write a name."""
    cut = _cut(name)
    words = sorted(cut.words or cut.makers)
    if cut.bus:
        words.append(cut.bus)
    if cut.memory_gb:
        words.append(f"{cut.memory_gb}gb")
    return " ".join(words)


def memory_gb(name: str) -> int:
    """Return how many GB of memory a name promises; 0 when it promises none."""
    return _cut(name).memory_gb


def is_known(name: str) -> bool:
    """Return whether a name looks like one of a GPU."""
    cut = _cut(name)
    if not cut.words:
        return bool(cut.makers)
    if cut.words & _MODELS or "titan" in cut.words:
        return True
    return bool(cut.words & _NUMBERED) and any(_NUMBER.fullmatch(word) for word in cut.words)


def count_and_name(told: str) -> tuple[int, str]:
    """Return the number of GPUs that a device reports, and their name; 0 and "" without one."""
    counted = _COUNT.match(told)
    name = told[counted.end() :].strip() if counted else told.strip()
    if not name:
        return 0, ""
    return (int(counted[1]) if counted else 1), name


def _is_made_by(wanted: _Name, name: _Name) -> bool:
    """Return whether a GPU is of a maker, if only the maker is wanted."""
    others = {"amd", "radeon", "instinct", "intel", "arc"}
    if wanted.makers == {"nvidia"}:  # NVIDIA's drivers do not always name the maker
        return bool(name.words) and not name.makers & others
    return wanted.makers <= name.makers


def _apart(word: str) -> tuple[str, ...]:
    """Return the words that stand in one, as in `rtx4090ti`."""
    joined = None if word in _MODELS else _JOINED.fullmatch(word)
    return (word,) if joined is None else tuple(each for each in joined.groups() if each)


@lru_cache(maxsize=NAMES_KEPT)
def _cut(name: str) -> _Name:
    text = _COUNT.sub("", name.lower(), count=1)
    text = _MAX_Q.sub("maxq", text).replace("mobile", "laptop")
    words, makers = set(), set()
    for partition in _PARTITION.findall(text):
        words.add(partition)
    text = _PARTITION.sub("mig", text).replace("-", " ").replace("_", " ")
    sizes = _MEMORY.findall(text)
    text = _MEMORY.sub(" ", text)
    bus = ""
    for word in _WORD.findall(text):
        if word in _MAKERS:
            makers.add(word)
        elif word.startswith(_BUSES):
            bus = next(each for each in _BUSES if word.startswith(each))
        elif word not in _NOISE:
            words.update(_apart(word))
    if any(re.fullmatch("w[0-9]{4}", word) for word in words):
        words.discard("pro")  # the name of all workstation cards of AMD
    # A part of a card has less memory than the name of the card indicates.
    memory_gb = int(sizes[0]) if sizes and "mig" not in words else 0
    return _Name(frozenset(words), frozenset(makers), memory_gb, bus)
