"""The archive of an image: equal for equal images, and as podman and Docker read it."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from release import image_archive

LAYER = b"the files"
KEPT = {"User": "10001:10001", "Healthcheck": {"Test": ["CMD", "proxyd", "health"]}}


def saved(path: Path, drawn: str) -> Path:
    """Write an archive as `podman save` does, with names that begin with `drawn`."""
    container = {"Hostname": f"{drawn}c5e3ca1645a", **KEPT}
    steps = [{"created_by": "COPY"}, {"created_by": "USER", "comment": f"FROM {drawn}4be728bc3b7"}]
    described = {
        "container": drawn * 64,
        "container_config": container,
        "config": container,
        "history": steps,
    }
    config = json.dumps(described).encode()
    name, layer = hashlib.sha256(config).hexdigest(), hashlib.sha256(LAYER).hexdigest()
    image = {"Config": f"{name}.json", "RepoTags": ["proxyd:1"], "Layers": [f"{layer}.tar"]}
    members = {
        f"{layer}.tar": LAYER,
        f"{name}.json": config,
        f"{drawn * 64}/VERSION": b"1.0",
        "manifest.json": json.dumps([image]).encode(),
        "repositories": json.dumps({"proxyd": {"1": drawn * 64}}).encode(),
    }
    with tarfile.open(path, "w") as archive:
        for member, content in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def contents(path: Path) -> dict[str, bytes]:
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            found[member.name] = file.read()
    return found


def test_equal_images_have_equal_archives(tmp_path: Path) -> None:
    paths = [saved(tmp_path / f"{drawn}.tar", drawn) for drawn in "ab"]
    assert paths[0].read_bytes() != paths[1].read_bytes()
    for path in paths:
        image_archive.settle(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert sorted(tmp_path.iterdir()) == paths


def test_an_archive_keeps_its_layer_and_all_that_a_container_needs(tmp_path: Path) -> None:
    path = saved(tmp_path / "image.tar", "a")
    image_archive.settle(path)
    members = contents(path)
    [image] = json.loads(members.pop("manifest.json"))
    assert image["RepoTags"] == ["proxyd:1"]
    assert members.pop(image["Layers"][0]) == LAYER
    text = members.pop(image["Config"])
    assert image["Config"] == f"{hashlib.sha256(text).hexdigest()}.json"
    config: dict[str, Any] = json.loads(text)
    steps = [{"created_by": "COPY"}, {"created_by": "USER"}]
    assert config == {"config": KEPT, "container_config": KEPT, "history": steps}
    assert not members
