"""Images for jobs: pulled by the agent, checked, bounded, and given to the engine as a file.

The engine fetches nothing itself: otherwise the engine would decide about connections, amounts and
times. So the agent also keeps the cache: images under one name of ours, the one that was used
longest ago removed first.
"""

from __future__ import annotations

import io
import json
import logging
import platform
import tarfile
import tempfile
import threading
import time
import zlib
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files
from proxyctl.worker.base.references import is_allowed, parse
from proxyctl.worker.base.scratch import remove_tree
from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.executors.containers.engine import EngineError, call
from proxyctl.worker.images.registry import Manifest, Registry, failure, way_to
from proxyctl.worker.task.patience import IMAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from proxyctl.worker.base.references import Reference
    from proxyctl.worker.executors.containers.engine import Engine
    from proxyctl.worker.network.outward import Dial
    from proxyctl.worker.task.patience import Patience

_logger = logging.getLogger("worker")

NAME: Final = "localhost/proxyd-image"  # of all that is kept here; the tag is the digest
_UNFINISHED: Final = "image-"  # folders of archives that are not whole yet
_LOAD_SECONDS: Final = 900.0  # of the largest images, on a slow disk
_LAYERS_MAX: Final = 127  # the most that overlay file systems can stack
_CONFIG_MAX_BYTES: Final = 4 << 20
_LOCK_SECONDS: Final = 0.5  # between two looks whether a pull that waits is still wanted
# From when an attempt has its image until its container is there, which keeps the image by itself.
_FRESH_SECONDS: Final = 120.0
_RESERVE: Final = 2  # times the image's size on the disk: as a file, and in the engine
_GIGABYTE: Final = 10**9
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_INDEXES: Final = ("image.index", "manifest.list")


@dataclass(frozen=True)
class ImageLimits:
    """The owner's limits for images.

    Attributes:
        allowed: patterns of names.
        registries: hosts, with ports, that are used although they are not on the public internet.
        bytes_per_day: that are pulled, compressed.
        cache_bytes: that are kept, unpacked.
        image_bytes: of one image, unpacked.
        seconds: for pulling one.
    """

    allowed: tuple[str, ...] = ("*",)
    registries: tuple[str, ...] = ()
    bytes_per_day: int = 50 * _GIGABYTE
    cache_bytes: int = 100 * _GIGABYTE
    image_bytes: int = 50 * _GIGABYTE
    seconds: float = 3600.0


@dataclass(frozen=True)
class Image:
    """An image that the engine has.

    Attributes:
        name: that it can be run by.
        digest: "sha256:…" of its manifest, which says all that is in it.
    """

    name: str
    digest: str


@dataclass(frozen=True)
class _Plan:
    """The contents to fetch as (digest, size), and the unpacked digest of each layer."""

    manifest: Manifest
    config: bytes
    layers: tuple[tuple[str, int], ...]
    unpacked: tuple[str, ...]


class Images:
    """The images that one engine has for jobs.

    Args:
        folder: the agent's; it holds the record of the kept images, and files on their way.
        dial: connects to places of strangers, which are all but the registries that the owner has
            named.
        fresh_seconds: an attempt that has its image has its container after this time.

    Raises:
        FileError: the rest of an image of a killed agent cannot be removed.
    """

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        limits: ImageLimits,
        dial: Dial,
        fresh_seconds: float = _FRESH_SECONDS,
    ) -> None:
        self._fresh_seconds = fresh_seconds
        self._engine = engine
        self._folder = folder
        self._state = folder / f"images-{engine.name}.json"
        self._limits = limits
        self._dial = dial
        self._pulling = threading.Lock()
        for left in folder.glob(f"{_UNFINISHED}*"):  # by an agent that was killed as it fetched
            remove_tree(left)

    def ensure(self, name: str, patience: Patience) -> Image:
        """Return an image that the engine has now, pulled if need be.

        Args:
            name: as the buyer wrote it.
            patience: of the attempt.

        Raises:
            TaskError: it is not available; the kind is "image", or "refused" where this device does
                not want it, or "host".
        """
        reference = parse(name)
        if reference is None:
            raise failure(f"{name!r} is no name of an image")
        if not is_allowed(name, self._limits.allowed):
            raise TaskError("refused", f"the owner of this device does not allow {reference}")
        while not self._pulling.acquire(timeout=_LOCK_SECONDS):
            if patience.is_over():
                raise failure("it was cancelled")
        try:
            return self._ensure(reference, patience)
        except EngineError as error:
            raise TaskError("host", str(error)) from None
        except OSError as error:
            raise TaskError("host", f"{error.filename}: {error.strerror}") from None
        except TaskError:
            raise
        except Exception:  # the answers of a stranger have led to a mistake of ours
            _logger.exception("the image %s cannot be understood", reference)
            raise failure("the answers of its registry cannot be understood") from None
        finally:
            self._pulling.release()

    def _ensure(self, reference: Reference, patience: Patience) -> Image:
        state = self._read()
        known = state["names"].get(str(reference)) if reference.digest else None
        if known and self._has(known):
            return self._used(state, reference, known)
        registry = Registry(
            reference,
            dial=way_to(reference.host, self._limits.registries, self._dial),
            deadline=time.monotonic() + self._limits.seconds,
            patience=patience,
        )
        with patience.waiting(IMAGE):
            which = reference.digest or reference.tag
            manifest = _of_this_machine(registry, registry.manifest(which))
        if not self._has(manifest.digest):
            self._pull(registry, manifest, state, patience)
        return self._used(state, reference, manifest.digest)

    def _pull(
        self, registry: Registry, manifest: Manifest, state: dict[str, Any], patience: Patience
    ) -> None:
        layers = _descriptors(manifest)
        compressed = sum(size for _, size in layers)
        today = datetime.now(timezone.utc).date().isoformat()
        if state["day"] != today:
            state["day"], state["pulled_bytes"] = today, 0
        if compressed > self._limits.image_bytes:
            raise _too_large(compressed, self._limits)
        if state["pulled_bytes"] + compressed > self._limits.bytes_per_day:
            allowed = self._limits.bytes_per_day / _GIGABYTE
            raise TaskError("refused", f"this device pulls {allowed:g} GB of images a day at most")
        self._require_disk(compressed)
        with patience.waiting(IMAGE):
            plan = _plan(registry, manifest, layers)
        with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=self._folder) as folder:
            path = Path(folder) / "image.tar"
            try:
                with patience.waiting(IMAGE):
                    unpacked = self._write(registry, plan, path)
            finally:
                state["pulled_bytes"] += path.stat().st_size if path.exists() else 0
                self._save(state)
            self._require_disk(unpacked)
            self._load(path, patience)
        if not self._has(manifest.digest):
            raise failure(f"{self._engine.name} could not make an image of the pulled layers")
        state["images"][manifest.digest] = {"bytes": unpacked, "used_at": 0.0}
        self._save(state)

    def _load(self, path: Path, patience: Patience) -> None:
        seconds = min(_LOAD_SECONDS, patience.left)
        try:
            call(self._engine, "load", "--input", str(path), seconds=seconds)
        except EngineError as error:
            if error.is_gone:
                raise
            # Its bytes have the image's digest, so an error of the engine is a fault of the image.
            raise failure(f"{self._engine.name} cannot load it: {error}") from None

    def _write(self, registry: Registry, plan: _Plan, path: Path) -> int:
        """Write the archive that engines load; return the size of all its layers, unpacked."""
        names = [f"{number}.layer" for number in range(len(plan.layers))]
        listing = [
            {"Config": "config.json", "RepoTags": [_tag(plan.manifest.digest)], "Layers": names}
        ]
        unpacked = 0
        with tarfile.open(path, "w") as archive:
            _add(archive, "config.json", plan.config)
            for name, (digest, size), expected in zip(names, plan.layers, plan.unpacked):
                member = tarfile.TarInfo(name)
                member.size = size
                left = self._limits.image_bytes - unpacked
                with closing(registry.blob(digest, size)) as chunks:
                    layer = _Layer(chunks, expected, left, self._limits)
                    archive.addfile(member, layer)
                    unpacked += layer.finish()
            _add(archive, "manifest.json", json.dumps(listing).encode())
        return unpacked

    def _require_disk(self, size: int) -> None:
        import shutil  # noqa: PLC0415 - an agent without images is spared it

        free = shutil.disk_usage(self._folder).free
        if free < _RESERVE * size + _GIGABYTE:
            raise TaskError("refused", f"an image of {size} bytes does not fit on this disk")

    def _has(self, digest: str) -> bool:
        try:
            call(self._engine, "image", "inspect", "--format", "{{.Id}}", _tag(digest))
        except EngineError as error:
            if error.is_gone:
                raise
            return False
        return True

    def _used(self, state: dict[str, Any], reference: Reference, digest: str) -> Image:
        kept = state["images"].setdefault(digest, {"bytes": 0, "used_at": 0.0})
        kept["used_at"] = datetime.now(timezone.utc).timestamp()
        if reference.digest:
            state["names"][str(reference)] = digest
        self._make_room(state, digest)
        self._save(state)
        return Image(_tag(digest), digest)

    def _make_room(self, state: dict[str, Any], wanted: str) -> None:
        """Remove images, those that were used longest ago first, until the rest is bounded."""
        images = state["images"]
        now = datetime.now(timezone.utc).timestamp()
        total = sum(each["bytes"] for each in images.values())
        for digest in sorted(images, key=lambda each: float(images[each]["used_at"])):
            if total <= self._limits.cache_bytes:
                return
            is_fresh = float(images[digest]["used_at"]) > now - self._fresh_seconds
            if digest == wanted or is_fresh:
                continue
            with suppress(EngineError):  # a container is made of it; another time
                call(self._engine, "rmi", _tag(digest))
                total -= images.pop(digest)["bytes"]
                state["names"] = {a: b for a, b in state["names"].items() if b != digest}

    def _read(self) -> dict[str, Any]:
        stored: dict[str, Any] = {}
        with suppress(files.FileError):
            stored = files.read(self._state) or {}
        empty: dict[str, Any] = {"images": {}, "names": {}, "day": "", "pulled_bytes": 0}
        return {
            name: stored[name] if isinstance(stored.get(name), type(value)) else value
            for name, value in empty.items()
        }

    def _save(self, state: Mapping[str, Any]) -> None:
        try:
            files.write(self._state, dict(state))
        except files.FileError as error:
            raise TaskError("host", str(error)) from None


class _Layer(io.RawIOBase):
    """A layer on its way into the archive: looked into while it passes.

    Args:
        chunks: compressed, or not.
        expected: the digest of its unpacked bytes.
        most: bytes that it may unpack to.
        limits: named where it is too large.
    """

    def __init__(
        self, chunks: Iterator[bytes], expected: str, most: int, limits: ImageLimits
    ) -> None:
        import hashlib  # noqa: PLC0415 - see `_require_disk`

        super().__init__()
        self._chunks = chunks
        self._expected = expected
        self._most = most
        self._limits = limits
        self._pending = b""
        self._hash = hashlib.sha256()
        self._size = 0
        self._unzip: Any = None
        self._is_begun = False

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes of it; fewer only at its end."""
        while len(self._pending) < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            self._look(chunk)
            self._pending += chunk
        piece, self._pending = self._pending[:size], self._pending[size:]
        return piece

    def finish(self) -> int:
        """Check the unpacked digest; return the unpacked size.

        Raises:
            TaskError: it is something else, or the registry has sent something else.
        """
        for chunk in self._chunks:  # its end is where its digest is checked
            self._look(chunk)
        if f"sha256:{self._hash.hexdigest()}" != self._expected:
            raise failure("a layer does not unpack to the digest in the image")
        return self._size

    def _look(self, chunk: bytes) -> None:
        if not self._is_begun:
            self._is_begun = True
            if chunk.startswith(b"\x28\xb5\x2f\xfd"):
                raise failure("a layer is compressed with zstd, which not every engine here reads")
            if chunk.startswith(b"\x1f\x8b"):
                self._unzip = zlib.decompressobj(wbits=31)
        if self._unzip is None:
            self._count(chunk)
            return
        try:
            while chunk:
                self._count(self._unzip.decompress(chunk, 1 << 20))
                chunk = self._unzip.unconsumed_tail
                if self._unzip.eof and self._unzip.unused_data:
                    chunk = self._unzip.unused_data  # gzip may be of several parts
                    self._unzip = zlib.decompressobj(wbits=31)
        except zlib.error:
            raise failure("a layer is not compressed as it says") from None

    def _count(self, data: bytes) -> None:
        self._size += len(data)
        self._hash.update(data)
        if self._size > self._most:
            raise _too_large(self._size, self._limits)


def _of_this_machine(registry: Registry, manifest: Manifest) -> Manifest:
    """Return the manifest for this kind of machine, if there are several."""
    kind = str(manifest.fields.get("mediaType") or "")
    listed = manifest.fields.get("manifests")
    if not isinstance(listed, list) or (kind and not any(each in kind for each in _INDEXES)):
        return manifest
    machine = _ARCHITECTURES.get(platform.machine(), platform.machine())
    for each in listed:
        described = each.get("platform") if isinstance(each, dict) else None
        if isinstance(described, dict) and (
            (described.get("os"), described.get("architecture")) == ("linux", machine)
        ):
            return registry.manifest(_digest(each))
    raise failure(f"there is no image for linux on {machine}")


def _descriptors(manifest: Manifest) -> tuple[tuple[str, int], ...]:
    layers = manifest.fields.get("layers")
    if not isinstance(layers, list) or not 0 < len(layers) <= _LAYERS_MAX:
        raise failure("its manifest has no layers, or too many, or is of an outdated kind")
    if any(isinstance(each, dict) and each.get("urls") for each in layers):
        raise failure("a layer has another address, which is not fetched")
    return tuple((_digest(each), _size(each)) for each in layers)


def _plan(registry: Registry, manifest: Manifest, layers: tuple[tuple[str, int], ...]) -> _Plan:
    described = manifest.fields.get("config")
    size = _size(described)
    if size > _CONFIG_MAX_BYTES:
        raise failure("its configuration is too long")
    config = b"".join(registry.blob(_digest(described), size))
    try:
        fields = json.loads(config)
        unpacked = tuple(str(each) for each in fields["rootfs"]["diff_ids"])
        system = fields.get("os")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise failure("its configuration cannot be understood") from None
    if system != "linux" or len(unpacked) != len(layers):
        raise failure("it is not for linux, or not all of it is there")
    return _Plan(manifest, config, layers, unpacked)


def _digest(described: object) -> str:
    digest = described.get("digest") if isinstance(described, dict) else None
    reference = parse(f"a@{digest}")
    if reference is None or not isinstance(digest, str):
        raise failure("a part of it has no digest of SHA-256")
    return digest


def _size(described: object) -> int:
    size = described.get("size") if isinstance(described, dict) else None
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise failure("a part of it has no size")
    return size


def _too_large(size: int, limits: ImageLimits) -> TaskError:
    most = limits.image_bytes / _GIGABYTE
    return TaskError("refused", f"it has {size} bytes or more; this device takes {most:g} GB")


def _tag(digest: str) -> str:
    return f"{NAME}:{digest.rpartition(':')[2]}"


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
