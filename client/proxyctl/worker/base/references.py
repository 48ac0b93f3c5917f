"""Names of images: `debian:12`, `ghcr.io/team/model@sha256:…`, `127.0.0.1:5000/own`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_REGISTRY: Final = "docker.io"
_DEFAULT_TAG: Final = "latest"
_MAX_CHARACTERS: Final = 500
_REFERENCE: Final = re.compile(
    r"(?:(?P<host>(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:]+\])(?::[0-9]{1,5})?)/)?"
    r"(?P<name>[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Reference:
    """The place of an image.

    Attributes:
        host: of the registry, with the port of the reference.
        name: of the repository.
        tag: the label of one of its images; empty if only a digest says so.
        digest: the expected digest, "sha256:…", or empty.
    """

    host: str
    name: str
    tag: str
    digest: str = ""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.host}/{self.name}{tag}{digest}"


def parse(text: str) -> Reference | None:
    """Return the reference that a name means to every engine; None if it is no reference."""
    match = _REFERENCE.fullmatch(text) if len(text) <= _MAX_CHARACTERS else None
    if match is None:
        return None
    host, name, tag, digest = match["host"], match["name"], match["tag"], match["digest"]
    # The first part is a host only if it looks like one: `team/model` is on the default registry.
    if host and not ("." in host or ":" in host or host == "localhost"):
        host, name = None, f"{host}/{name}"
    if name != name.lower():
        return None
    host = host or DEFAULT_REGISTRY
    if host == DEFAULT_REGISTRY and "/" not in name:
        name = f"library/{name}"
    return Reference(host.lower(), name, tag or ("" if digest else _DEFAULT_TAG), digest or "")


def is_allowed(text: str, patterns: Iterable[str]) -> bool:
    """Return whether an owner's patterns allow an image, by the name given or by its full one."""
    reference = parse(text)
    names = {text} if reference is None else {text, str(reference)}
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)
