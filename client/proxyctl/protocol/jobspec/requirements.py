"""Reads the needs of a job from a text: `RTX 4090, 16 GB RAM and 8 cores`.

Buyers write as they write elsewhere, so the forms of several marketplaces and tools are understood.
A text is cut into parts, and each part into items, the longest that fits first. No part is dropped
silently: prose is warned of, and a part that has a number or a word of the trade in it and was not
understood makes the job one that no device is offered by itself.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from proxyctl.protocol.jobspec import gpus
from proxyctl.protocol.jobspec.checks import MODEL_MAX, architecture, check_resources
from proxyctl.protocol.jobspec.errors import SpecError
from proxyctl.protocol.jobspec.payload import Resources

if TYPE_CHECKING:
    from collections.abc import Callable

# More is not a list of needs, and would take the daemon more than a few milliseconds to read.
PARTS_MAX: Final = 50
ITEMS_MAX: Final = 100
PART_MAX_CHARACTERS: Final = 120
WARNINGS_MAX: Final = 20
QUOTED_MAX_CHARACTERS: Final = 60

_NUMBER: Final = r"[0-9]{1,7}(?:\.[0-9]{1,3})?"
_UNIT: Final = r"(?:[tgm]i?b|[tgm]i|g)"
_SIZED: Final = rf"(?P<size>{_NUMBER})\s?(?P<unit>{_UNIT})"
_RANGE: Final = rf"(?:\.\.(?P<most>{_NUMBER}\s?{_UNIT})?)?\+?"
_SIZE: Final = _SIZED + _RANGE
_SIZE_OR_GB: Final = f"{_SIZED}?{_RANGE}"  # where a number without a unit is one of GB
_IS: Final = r"\s?(?:(?P<more>>)|>=|=>|≥|==?|:)?\s?"
_IS_SAID: Final = r"\s?(?:(?P<more>>)|>=|=>|≥|==?|:)\s?"
_OF_GPU: Final = (
    r"(?:vram|gpu[ _]?(?:ram|mem(?:ory)?|vram)|gpu[ _]total[ _]ram|video (?:ram|memory)"
    r"|graphics memory)"
)
_OF_RAM: Final = r"(?:ram|mem(?:ory)?|(?:system|main|host|cpu)[ _](?:ram|memory)|ram_gb)"
_OF_DISK: Final = (
    r"(?:disk(?:[ _](?:space|size))?|storage|scratch(?: space)?|disk_gb"
    r"|(?P<kind>ssd|nvme|hdd)(?: (?:disk|storage|space))?)"
)
_OF_CORES: Final = (
    r"(?:(?:v?cpu|physical)[ _]?cores?|v?cores?|v?cpus?|threads?|cpu_cores_effective)"
)
_GPU: Final = r"(?:gpus?|graphics cards?|video cards?)"
_ARCH: Final = r"(?:x86[_-]64|amd64|x64|arm64|aarch64)"

_MAKER: Final = r"(?:nvidia|geforce|quadro|tesla|amd|radeon|instinct|intel|arc)"
_KIND_OF_MODEL: Final = (
    r"(?:ti|super|d|xtx?|gre|laptop|mobile|max[ -]?q|ada(?: generation)?|generation|sff|blackwell"
    r"|pcie|sxm[0-9]?|nvl|hbm[23]e?|mig [0-9]g\.[0-9]{1,3}gb|(?:workstation|server) edition|design)"
)
_MODEL: Final = (
    rf"(?:{_MAKER}[ _-])*"
    r"(?:titan[ _](?:rtx|xp|x|v)|(?:rtx|gtx|gt|rx)[ _-]?(?:pro[ _-])?a?[0-9]{3,4}"
    r"|(?:pro[ _-])?[a-z]{0,2}[0-9]{1,4}[a-z]?)"
    rf"(?:[ _-]?{_KIND_OF_MODEL}(?![a-z0-9]))*"
)
_COUNTED: Final = r"(?:(?P<count>[0-9]{1,2})(?:\s?[x×*]\s?|\s))?"
_COUNTED_AFTER: Final = r"(?:\s?[x×*:]\s?(?P<after>[0-9]{1,2}))?"
_OF_EACH: Final = r"(?: (?:each|per (?:gpu|card)))?"

_GIGABYTES: Final = {"t": 1_000.0, "g": 1.0, "m": 0.001}
_BINARY: Final = {"t": 1.024**4 * 1_000, "g": 1.024**3, "m": 1.024**2 / 1_000}

_PARTS: Final = re.compile(r"[,;\n\r]|\band\b|&", re.IGNORECASE)
_BESIDE: Final = re.compile(r"\bwith\b|\bw/", re.IGNORECASE)
_AROUND: Final = " \t.!•*-–—()[]\"'`"
_FILLER: Final = re.compile(
    r"(?:at least|minimum(?: of)?|min\.?|needs?|requires?|required|requirements?:?|an?|of|free"
    r"|available|or more|total|each)(?![^\s])",
    re.IGNORECASE,
)
_OTHERS: Final = re.compile(
    r"(?:or )?(?:better|newer|higher|faster|similar|equivalent)(?![^\s])", re.IGNORECASE
)
_WORDS_OF_THE_TRADE: Final = re.compile(
    rf"(?<![a-z])(?:{_OF_GPU}|{_OF_RAM}|{_OF_DISK.replace('?P<kind>', '?:')}|{_OF_CORES}"
    rf"|{_GPU}|{_ARCH}|{_MAKER}|rtx|gtx|cuda|rocm|arm|x86|country|region|reliability"
    r"|compute[ _]cap[a-z]*|[gt]i?b)"
    r"(?![a-z])",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Parsed:
    """The result of reading a text: the needs, and warnings for its writer about the rest.

    `is_manual` says that something which counts was not understood: no device is to be offered the
    job by itself.
    """

    resources: Resources
    warnings: tuple[str, ...] = ()
    is_manual: bool = False


def parse(text: str) -> Parsed:
    """Return the needs of a job that a text describes; it never raises."""
    reading = _Reading()
    parts = [each for each in (part.strip(_AROUND) for part in _PARTS.split(text)) if each]
    for part in parts[:PARTS_MAX]:
        reading.read_part(" ".join(part.split()))
    if len(parts) > PARTS_MAX:
        reading.leave(f"{len(parts) - PARTS_MAX} more parts", is_manual=True)
    return reading.parsed()


def text_of(resources: Resources) -> str:
    """Return a text with the needs of a job; `parse` understands it like that."""
    count, model = resources.needed_gpus, resources.gpu_model
    said = []
    if count:
        said.append(f"GPU: {count} x {model}" if model else f"GPUs: {count}")
    for amount, of in (
        (resources.vram_gb, "GB VRAM"),
        (resources.cores, "cores"),
        (resources.ram_gb, "GB RAM"),
        (resources.disk_gb, "GB disk"),
    ):
        if amount:
            said.append(f"{_decimal(amount)} {of}")
    if resources.cuda:
        said.append(f"cuda >= {resources.cuda}")
    if resources.arch:
        said.append(resources.arch)
    return ", ".join(said)


def unknown_model(name: str) -> str:
    """Return the warning for the name of a GPU that looks like no other."""
    return f"No GPU called {_quoted(name)} is known here: only one of this name is taken."


@dataclass
class _Reading:
    """The needs that were read from a text so far."""

    resources: Resources = field(default_factory=Resources)
    warnings: list[str] = field(default_factory=list)
    is_manual: bool = False
    left_out: int = 0
    items: int = 0
    wants_none: bool = False

    def parsed(self) -> Parsed:
        """Return all of it, at the end."""
        resources = self.resources
        if self.wants_none and resources.needed_gpus:
            self.leave("no GPU", is_manual=True, why="contradicts what asks for one")
        if self.left_out:
            self.warnings.append(f"{self.left_out} more warnings are left out.")
        resources = replace(resources, gpus=resources.needed_gpus)
        return Parsed(resources, tuple(self.warnings), self.is_manual)

    def read_part(self, part: str) -> None:
        """Read all items of a part, or none: a part that is not understood is reported."""
        if len(part) > PART_MAX_CHARACTERS:
            self.leave(part, is_manual=_counts(part))
            return
        before = (self.resources, len(self.warnings), self.wants_none, self.is_manual)
        try:
            self._read_items(part)
        except SpecError as error:
            self.resources, kept, self.wants_none, self.is_manual = before
            del self.warnings[kept:]
            self.leave(part, is_manual=_counts(part), why=error.message)

    def leave(self, words: str, *, is_manual: bool, why: str = "is not understood") -> None:
        """Warn that some words were not taken."""
        effect = (
            "no device is offered the job by itself; cancel it and post it again in other words"
            if is_manual
            else "devices are chosen without it"
        )
        self.is_manual = self.is_manual or is_manual
        self.warn(f"{_quoted(words)} {why}: {effect}.")

    def warn(self, sentence: str) -> None:
        """Keep a warning, up to a number of them."""
        if len(self.warnings) < WARNINGS_MAX:
            self.warnings.append(sentence)
        else:
            self.left_out += 1

    def take(self, name: str, value: Any) -> None:  # noqa: ANN401 - as the field is
        """Take the need for one thing; of two amounts the larger.

        Raises:
            SpecError: the amount is above the limit, or two texts differ.
        """
        had = getattr(self.resources, name)
        if had and had != value:
            if isinstance(value, str):
                raise SpecError(name, "says something else than what is before it")
            self.warn(f"{name} is said twice: {_decimal(max(had, value))} is taken.")
            value = max(had, value)
        taken = replace(self.resources, **{name: value})
        try:
            check_resources(taken)
        except SpecError:
            raise SpecError(name, "asks for more than there is") from None
        self.resources = taken

    def _read_items(self, part: str) -> None:
        is_beside_gpu = False
        for phrase in _BESIDE.split(part):
            rest = phrase.strip(_AROUND)
            while rest:
                filler = _FILLER.match(rest)
                if filler is not None:
                    rest = rest[filler.end() :].lstrip(_AROUND + ":")
                    continue
                self.items += 1
                if self.items > ITEMS_MAX:
                    raise SpecError("", "comes after too many others")
                form, match = _longest(rest)
                is_beside_gpu = form.read(self, match, is_beside_gpu)
                rest = rest[match.end() :].lstrip(_AROUND)


@dataclass(frozen=True)
class _Form:
    """A way to say something; `read` takes it, and says whether it was about a GPU."""

    pattern: re.Pattern[str]
    read: Callable[[_Reading, re.Match[str], bool], bool]


def _longest(rest: str) -> tuple[_Form, re.Match[str]]:
    """Return the form that matches the longest beginning of a text.

    Raises:
        SpecError: none does.
    """
    found = [(form, match) for form in _FORMS if (match := form.pattern.match(rest)) is not None]
    if not found:
        raise SpecError("", "is not understood")
    return max(found, key=lambda each: each[1].end())


def _counts(part: str) -> bool:
    """Return whether a part has a number or a word of the trade in it."""
    return any(each.isnumeric() for each in part) or _WORDS_OF_THE_TRADE.search(part) is not None


def _quoted(words: str) -> str:
    shown = words if len(words) <= QUOTED_MAX_CHARACTERS else words[:QUOTED_MAX_CHARACTERS] + "…"
    return '"' + "".join(each if each.isprintable() else "?" for each in shown) + '"'


def _decimal(number: float) -> str:
    return f"{number:.3f}".rstrip("0").rstrip(".")


def _gigabytes(match: re.Match[str]) -> float:
    """Return a size in GB with three decimals, never less than the size in the text."""
    unit = (match["unit"] or "gb").lower()
    each = (_BINARY if "i" in unit else _GIGABYTES)[unit[0]]
    return math.ceil(float(match["size"]) * each * 1_000 - 1e-6) / 1_000


def _size(name: str) -> Callable[[_Reading, re.Match[str], bool], bool]:
    def read(reading: _Reading, match: re.Match[str], _is_beside_gpu: bool) -> bool:
        said = match.groupdict()
        reading.take(name, _gigabytes(match))
        if said.get("most"):
            reading.warn(f"{_quoted(match[0])}: that it is not more than that is not asked for.")
        if said.get("kind"):
            reading.warn(f"{_quoted(match[0])}: what kind of disk it is, no device says.")
        if said.get("more"):
            _warn_of_more(reading, match)
        return name == "vram_gb"

    return read


def _bare_size(reading: _Reading, match: re.Match[str], is_beside_gpu: bool) -> bool:
    name = "vram_gb" if is_beside_gpu else "ram_gb"
    return _size(name)(reading, match, is_beside_gpu)


def _cores(reading: _Reading, match: re.Match[str], _is_beside_gpu: bool) -> bool:
    reading.take("cores", float(match["cores"]))
    if match.groupdict().get("more"):
        _warn_of_more(reading, match)
    return False


def _warn_of_more(reading: _Reading, match: re.Match[str]) -> None:
    reading.warn(f"{_quoted(match[0])} is taken as: at least so much.")


def _gpu_count(reading: _Reading, match: re.Match[str], _is_beside_gpu: bool) -> bool:
    count = match.groupdict().get("gpus")
    if count is None:
        if not reading.resources.needed_gpus:
            reading.take("gpus", 1)
    elif int(count) == 0:
        reading.wants_none = True
    else:
        reading.take("gpus", int(count))
    return True


def _no_gpu(reading: _Reading, _match: re.Match[str], _is_beside_gpu: bool) -> bool:
    reading.wants_none = True
    return False


def _model(reading: _Reading, match: re.Match[str], _is_beside_gpu: bool) -> bool:
    """Take a card by its name.

    Raises:
        SpecError: no card is called that.
    """
    said = match.groupdict()
    name = " ".join((said["model"] + (said.get("kinds") or "")).replace("_", " ").split())
    if not gpus.is_known(name):
        raise SpecError("gpu_model", "is not understood")
    count = said.get("count") or said.get("after")
    if said.get("count") and said.get("after"):
        raise SpecError("gpus", "gives two numbers")
    _take_model(reading, name)
    if count:
        if int(count) == 0:
            raise SpecError("gpus", "asks for 0 of them")
        reading.take("gpus", int(count))
    if said.get("size") and "mig" not in name.lower():
        reading.take("vram_gb", _gigabytes(match))
    return True


def _maker(reading: _Reading, match: re.Match[str], _is_beside_gpu: bool) -> bool:
    reading.take("gpu_model", match["model"] or match["maker"])
    if match["count"]:
        reading.take("gpus", int(match["count"]))
    return True


def _named(reading: _Reading, match: re.Match[str], is_beside_gpu: bool) -> bool:
    """Take a name that the text declares as the name of a card.

    Raises:
        SpecError: it has no number in it, as every card's name has.
    """
    name = " ".join(match["model"].replace("_", " ").split())
    if gpus.is_known(name) and _PLAIN_MODEL.fullmatch(name):
        return _model(reading, match, is_beside_gpu)
    if len(name) > MODEL_MAX or not any(each.isdigit() for each in name):
        raise SpecError("gpu_model", "is not understood")
    _take_model(reading, name)
    if match["count"]:
        reading.take("gpus", int(match["count"]))
    reading.warn(unknown_model(name))
    return True


def _take_model(reading: _Reading, name: str) -> None:
    memory_gb = gpus.memory_gb(name)
    had = reading.resources.gpu_model
    if had and gpus.key(had) == gpus.key(name):
        return
    reading.take("gpu_model", name)
    if memory_gb:
        reading.take("vram_gb", float(memory_gb))


def _cuda(reading: _Reading, match: re.Match[str], _is_beside_gpu: bool) -> bool:
    said = match["cuda"] or "1.0"
    major, _, minor = said.partition(".")
    minor, _, patch = minor.partition(".")
    if patch:
        reading.warn(f"{_quoted(match[0])} is taken as {major}.{minor}: drivers say no more.")
    reading.take("cuda", f"{int(major)}.{int(minor or 0)}")
    if match["more"]:
        _warn_of_more(reading, match)
    return True


def _arch(reading: _Reading, match: re.Match[str], _is_beside_gpu: bool) -> bool:
    reading.take("arch", architecture(match["arch"]))
    return False


def _untold(reading: _Reading, match: re.Match[str], _is_beside_gpu: bool) -> bool:
    reading.leave(match[0], is_manual=True, why="is nothing that devices tell")
    return False


def _docker(reading: _Reading, match: re.Match[str], _is_beside_gpu: bool) -> bool:
    reading.warn(f"{_quoted(match[0])}: what a job runs in follows from its type and its image.")
    return False


def _others(reading: _Reading, match: re.Match[str], is_beside_gpu: bool) -> bool:
    reading.warn(f"{_quoted(match[0])}: no other is chosen than what is named.")
    return is_beside_gpu


def _form(pattern: str, read: Callable[[_Reading, re.Match[str], bool], bool]) -> _Form:
    # An item ends where a word does.
    return _Form(re.compile(rf"(?:{pattern})(?![^\s)\]])", re.IGNORECASE), read)


_PLAIN_MODEL: Final = re.compile(rf"{_MODEL}(?:[ :-]?[0-9]{{1,4}}\s?gb)?", re.IGNORECASE)
_FORMS: Final = (
    _form(rf"{_SIZE}(?: of)? ?{_OF_GPU}{_OF_EACH}", _size("vram_gb")),
    _form(rf"{_OF_GPU}{_IS}{_SIZE_OR_GB}{_OF_EACH}", _size("vram_gb")),
    _form(rf"{_GPU}{_IS}{_SIZE}{_OF_EACH}", _size("vram_gb")),
    _form(rf"{_SIZE} (?:{_GPU}|per (?:gpu|card))", _size("vram_gb")),
    _form(rf"{_SIZE}(?: of)? ?{_OF_RAM}", _size("ram_gb")),
    _form(rf"{_OF_RAM}{_IS}{_SIZE_OR_GB}", _size("ram_gb")),
    _form(rf"{_SIZE}(?: of)? ?{_OF_DISK}", _size("disk_gb")),
    _form(rf"{_OF_DISK}{_IS}{_SIZE_OR_GB}", _size("disk_gb")),
    _form(_SIZE, _bare_size),
    _form(rf"(?P<cores>{_NUMBER})\+?[\s-]?[x×]?\s?{_OF_CORES}(?: cpu)?", _cores),
    _form(rf"{_OF_CORES}{_IS}(?P<cores>{_NUMBER})\+?", _cores),
    _form(rf"(?P<gpus>[0-9]{{1,2}})\+?\s?[x×*]?\s?{_GPU}", _gpu_count),
    _form(rf"(?:num[ _]gpus|gpu[ _]count|{_GPU}){_IS_SAID}(?P<gpus>[0-9]{{1,2}})\+?", _gpu_count),
    _form(rf"{_GPU}(?:{_IS_SAID}(?:yes|any|required))?", _gpu_count),
    _form(rf"(?:no {_GPU}|cpu[ -]only|{_GPU}{_IS_SAID}(?:no|none|0))", _no_gpu),
    _form(
        rf"(?:{_GPU}(?:[ _](?:model|name|type))?{_IS}|gpu )?{_COUNTED}(?P<model>{_MODEL})"
        rf"(?:[ :-]?{_SIZE})?(?P<kinds>(?: {_KIND_OF_MODEL})*)(?: {_GPU})?"
        rf"{_COUNTED_AFTER}{_OF_EACH}",
        _model,
    ),
    _form(rf"(?:{_GPU}{_IS_SAID}{_COUNTED}(?P<model>{_MAKER})|(?P<maker>{_MAKER}) {_GPU})", _maker),
    _form(
        rf"{_GPU}(?:[ _](?:model|name|type))?{_IS_SAID}(?:(?P<count>[1-9][0-9]?) x )?"
        r"(?P<model>[^\s:=<>].*)",
        _named,
    ),
    _form(
        rf"cuda(?:[ _]vers(?:ion)?)?{_IS}(?P<cuda>[0-9]{{1,2}}(?:\.[0-9]{{1,2}}){{0,2}})?\+?", _cuda
    ),
    _form(rf"(?:(?:cpu[ _])?arch(?:itecture)?{_IS})?(?P<arch>{_ARCH})(?: cpus?)?", _arch),
    _form(
        rf"(?:compute[ _]cap(?:ability)?|country|region|geolocation|reliability\d?){_IS_SAID}\S+",
        _untold,
    ),
    _form(r"docker(?: (?:installed|engine|support))?|containers?", _docker),
    _Form(_OTHERS, _others),
)
