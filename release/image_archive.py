"""Writes the archive of an image without the names that its builder has drawn at random."""

import hashlib
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
MODE = 0o444
_PARENT = re.compile(r"FROM [0-9a-f]{12,64}")


def settle(archive: Path) -> None:
    """Write an archive of `podman save --format=docker-archive` anew, so that it is reproducible.

    The configuration of the image has the identifiers of a container and of an image in between,
    which are random, and a host name made of one of them. They have no reader. The new archive also
    lacks the members for Docker before 1.10, because such an identifier is their name.

    Args:
        archive: the archive of one image; it is replaced.
    """
    draft = archive.with_name(f"{archive.name}.draft")
    with tarfile.open(archive) as given, tarfile.open(draft, "w") as made:
        [image] = json.loads(_content(given, MANIFEST))
        config = _settled(json.loads(_content(given, image["Config"])))
        text = json.dumps(config, separators=(",", ":")).encode()
        image["Config"] = f"{hashlib.sha256(text).hexdigest()}.json"
        for layer in dict.fromkeys(image["Layers"]):
            made.addfile(given.getmember(layer), given.extractfile(layer))
        _add(made, image["Config"], text)
        _add(made, MANIFEST, json.dumps([image], separators=(",", ":")).encode())
    draft.replace(archive)


def _settled(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of an image without random names."""
    config.pop("container", None)
    for part in ("config", "container_config"):
        config.get(part, {}).pop("Hostname", None)
    for step in config.get("history", []):
        if _PARENT.fullmatch(step.get("comment", "")):
            del step["comment"]
    return config


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None  # noqa: S101 - `podman save` writes it as a file
    return file.read()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), MODE
    archive.addfile(member, io.BytesIO(content))
