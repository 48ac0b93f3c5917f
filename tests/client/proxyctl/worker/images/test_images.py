"""proxyctl.worker.images.images and registry: pulled images, refused ones, and the errors."""

import gzip
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.base.brief import brief
from support.workers import registry
from support.workers.archives import Member, tarred
from support.workers.outward import Dialled, to_nowhere_near
from support.workers.registry import ImageParts, Liar, layer_of, push

from proxyctl.worker.executors.base.base import Bounds, Task, TaskError
from proxyctl.worker.executors.containers.containers import Containers
from proxyctl.worker.executors.containers.engine import call
from proxyctl.worker.images import registry as registry_module
from proxyctl.worker.images.images import NAME, ImageLimits, Images
from proxyctl.worker.network.outward import anywhere
from proxyctl.worker.task.patience import Patience

UNLIMITED = ImageLimits()
_TOKENS = (b"[]", b"5", b"null")


@pytest.fixture(scope="module")
def real_registry() -> Iterator[str]:
    with registry.registry() as host:
        yield host


@pytest.fixture
def liar() -> Iterator[Liar]:
    with registry.liar() as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "agent"
    made.mkdir()
    return made


@pytest.fixture(params=brief(["podman", "docker"]))
def containers(
    request: pytest.FixtureRequest,
    folder: Path,
    make_containers: Callable[[str, Path], Containers],
) -> Iterator[Containers]:
    made = make_containers(request.param, folder)
    yield made
    _remove_images(made)


@pytest.fixture
def podman(
    folder: Path, make_containers: Callable[[str, Path], Containers]
) -> Iterator[Containers]:
    made = make_containers("podman", folder)
    yield made
    _remove_images(made)


def _remove_images(containers: Containers) -> None:
    for each in kept(containers):
        call(containers.engine, "rmi", each)


def kept(containers: Containers) -> list[str]:
    text = call(containers.engine, "images", "--format", "{{.Repository}}:{{.Tag}}")
    return [each for each in text.split() if each.startswith(NAME)]


def images_of(
    containers: Containers, folder: Path, limits: ImageLimits = UNLIMITED, **times: float
) -> Images:
    return Images(containers.engine, folder, limits, dial=anywhere, **times)


def shell_image(text: str = "own") -> ImageParts:
    """An image with a shell in two layers; the second layer has a file of its own."""
    shell = Path("/bin/busybox").resolve().read_bytes()
    return ImageParts(layer_of({"bin/sh": shell}), layer_of({"word": text.encode()}))


def refusal(images: Images, name: str) -> TaskError:
    with pytest.raises(TaskError) as caught:
        images.ensure(name, Patience())
    return caught.value


def test_an_image_of_ones_own_is_pulled_by_tag_and_by_digest_and_runs(
    containers: Containers, folder: Path, real_registry: str
) -> None:
    image = shell_image(containers.name)
    name = f"team/own-{containers.name}"
    push(real_registry, name, "v1", image, as_index=True)
    images = images_of(containers, folder)
    pulled = images.ensure(f"{real_registry}/{name}:v1", Patience())
    assert pulled.digest == image.digest
    assert images.ensure(f"{real_registry}/{name}@{image.digest}", Patience()) == pulled
    attempt = folder / "attempts" / f"pulled-{os.getpid()}-1"
    (attempt / "work").mkdir(parents=True)
    bounds = Bounds(1.0, 64 << 20, 1 << 20, 32, 30)
    command = ("sh", "-c", "read word < /word; echo $word")
    task = Task(attempt.name, attempt, "docker", command, bounds, image=pulled.name)
    launch = containers.prepare(task)
    try:
        done = subprocess.run(
            launch.argv, env=dict(launch.env), capture_output=True, timeout=60, check=True
        )
    finally:
        containers.clean(task.attempt_id)
    assert done.stdout.decode().strip() == containers.name
    assert sorted(each.name for each in folder.iterdir()) == [
        "attempts",
        *(["docker"] if (folder / "docker").exists() else []),
        f"images-{containers.name}.json",
    ]


def test_an_image_that_is_here_by_its_digest_needs_no_registry(
    podman: Containers, folder: Path, liar: Liar
) -> None:
    image = shell_image()
    liar.serve("own", image)
    images = images_of(podman, folder)
    name = f"{liar.host}/own@{image.digest}"
    first = images.ensure(name, Patience())
    liar.answers.clear()
    asked = len(liar.asked)
    assert images_of(podman, folder).ensure(name, Patience()) == first
    assert len(liar.asked) == asked
    # An image that another program has removed is pulled anew.
    call(podman.engine, "rmi", first.name)
    assert refusal(images, name).kind == "image"


@pytest.mark.long
def test_a_missing_image_is_reported_in_words(podman: Containers, folder: Path, liar: Liar) -> None:
    images = images_of(podman, folder)
    for name, words in (
        (f"{liar.host}/none:v1", "there is no"),
        ("127.0.0.1:1/none", "cannot be reached"),
        ("no such name", "no name of an image"),
        ("--help", "no name of an image"),
    ):
        error = refusal(images, name)
        assert (error.kind, words in error.message) == ("image", True), error.message
    liar.answers["/v2/private/manifests/latest"] = (401, {"WWW-Authenticate": "Basic"}, b"")
    assert "wants a login" in refusal(images, f"{liar.host}/private").message
    challenge = {"WWW-Authenticate": f'Bearer realm="http://{liar.host}/token",service="s"'}
    liar.answers["/v2/hidden/manifests/latest"] = (401, challenge, b"")
    path = "/token?service=s&scope=repository%3Ahidden%3Apull"
    liar.answers[path] = (200, {}, json.dumps({"token": "t"}).encode())
    assert "wants a login" in refusal(images, f"{liar.host}/hidden").message
    assert path in liar.asked
    liar.answers["/v2/busy/manifests/latest"] = (429, {}, b"")
    assert "too many requests" in refusal(images, f"{liar.host}/busy").message
    assert kept(podman) == []


def other_image(*layers: bytes, **config: object) -> Callable[[Liar, ImageParts], None]:
    """Serve another image with correct digests."""

    def tell(liar: Liar, image: ImageParts) -> None:
        other = ImageParts(*layers, config=config)
        image.blobs, image.fields = other.blobs, other.fields
        liar.serve("own", image)

    return tell


def token(text: bytes) -> Callable[[Liar, ImageParts], None]:
    """Ask for a token, and give this one."""

    def tell(liar: Liar, image: ImageParts) -> None:
        challenge = {"WWW-Authenticate": f'Bearer realm="http://{liar.host}/token"'}
        liar.answers["/v2/own/manifests/latest"] = (401, challenge, b"")
        path = "/token?service=&scope=repository%3Aown%3Apull"
        liar.answers[path] = (200, {}, text)

    return tell


def lies() -> dict[str, tuple[str, Callable[[Liar, ImageParts], None]]]:
    def answer(path: str, body: bytes) -> Callable[[Liar, ImageParts], None]:
        def tell(liar: Liar, image: ImageParts) -> None:
            liar.answers[f"/v2/own/{path}"] = (200, {}, body)

        return tell

    def layer(change: Callable[[bytes], bytes]) -> Callable[[Liar, ImageParts], None]:
        def tell(liar: Liar, image: ImageParts) -> None:
            digest = image.fields["layers"][0]["digest"]
            body = change(image.blobs[digest])
            liar.answers[f"/v2/own/blobs/{digest}"] = (200, {}, body)

        return tell

    def other_content(liar: Liar, image: ImageParts) -> None:
        """A layer that has its digest, and unpacks to something else than the image says."""
        image.fields["layers"][0] = image.add(gzip.compress(layer_of({"bin/sh": b"other"})))
        liar.serve("own", image)

    def elsewhere(liar: Liar, image: ImageParts) -> None:
        image.fields["layers"][0]["urls"] = ["http://192.168.1.1/"]
        liar.serve("own", image)

    def zstd(liar: Liar, image: ImageParts) -> None:
        image.fields["layers"][0] = image.add(b"\x28\xb5\x2f\xfd" + bytes(100))
        liar.serve("own", image)

    def plain_http(liar: Liar, image: ImageParts) -> None:
        place = {"Location": "http://example.com/manifest"}
        liar.answers["/v2/own/manifests/latest"] = (307, place, b"")

    def round_and_round(liar: Liar, image: ImageParts) -> None:
        place = {"Location": "/v2/own/manifests/latest"}
        liar.answers["/v2/own/manifests/latest"] = (307, place, b"")

    return {
        "no archive": ("cannot load it", other_image(b"no archive at all")),
        "no environment": ("cannot load it", other_image(layer_of({"x": b"x"}), Env=5)),
        **{f"token {text!r}": ("a token that cannot", token(text)) for text in _TOKENS},
        "no JSON": ("no JSON object", answer("manifests/latest", b"<html>")),
        "a list": ("no JSON object", answer("manifests/latest", b"[]")),
        "no layers": ("has no layers", answer("manifests/latest", b"{}")),
        "deep": ("no JSON object", answer("manifests/latest", b"[" * 100_000)),
        "huge": ("more than the", answer("manifests/latest", b" " * (5 << 20))),
        "nothing for here": (
            "there is no image for linux",
            answer("manifests/latest", b'{"manifests": [{"platform": {"os": "plan9"}}]}'),
        ),
        "too long": ("more than the", layer(lambda blob: blob + b"x")),
        "too short": ("something else for the digest", layer(lambda blob: blob[:-1])),
        "changed": ("not compressed as it says", layer(lambda blob: blob[:-1] + b"\x7f")),
        "other content": ("unpack to the digest in the image", other_content),
        "elsewhere": ("another address", elsewhere),
        "zstd": ("zstd", zstd),
        "without encryption": ("without encryption", plain_http),
        "redirects": ("without an end", round_and_round),
    }


def test_a_registry_that_lies_is_not_believed(podman: Containers, folder: Path, liar: Liar) -> None:
    """All lies in one test: each look at the images of podman takes a second of processor time.

    No refused image leaves a connection open: its error, which a caller may keep, holds the frames
    of the pull.
    """
    wrong = []
    dialled = Dialled(anywhere)
    for lie, (words, tell) in lies().items():
        liar.answers.clear()
        image = shell_image(lie)
        liar.serve("own", image)
        tell(liar, image)
        images = Images(podman.engine, folder, UNLIMITED, dial=dialled)
        error = refusal(images, f"{liar.host}/own")
        assert dialled.left_open() == [], lie
        if error.kind != "image" or words not in error.message:
            wrong.append(f"{lie}: {error.kind}: {error.message}")
        if left := [each.name for each in folder.iterdir() if each.name.startswith("image-")]:
            wrong.append(f"{lie}: leaves {left}")
    assert not wrong, "\n".join(wrong)
    assert kept(podman) == []


def test_a_wrong_digest_is_refused(podman: Containers, folder: Path, liar: Liar) -> None:
    image = shell_image()
    digest = "sha256:" + "0" * 64
    liar.answers[f"/v2/own/manifests/{digest}"] = (200, {}, image.manifest)
    error = refusal(images_of(podman, folder), f"{liar.host}/own@{digest}")
    assert "something else for the digest" in error.message


def leads_by_manifest(registry: Liar, image: ImageParts, place: str) -> None:
    registry.answers["/v2/own/manifests/latest"] = (307, {"Location": f"http://{place}/v"}, b"")


def leads_by_layer(registry: Liar, image: ImageParts, place: str) -> None:
    path = f"/v2/own/blobs/{image.fields['layers'][0]['digest']}"
    registry.answers[path] = (302, {"Location": f"http://{place}{path}"}, b"")


def leads_by_token(registry: Liar, image: ImageParts, place: str) -> None:
    challenge = {"WWW-Authenticate": f'Bearer realm="http://{place}/token"'}
    registry.answers["/v2/own/manifests/latest"] = (401, challenge, b"")


@pytest.mark.long
@pytest.mark.parametrize("lead", [leads_by_manifest, leads_by_layer, leads_by_token])
def test_a_registry_that_the_owner_has_named_leads_to_no_other_place_at_home(
    podman: Containers,
    folder: Path,
    liar: Liar,
    lead: Callable[[Liar, ImageParts, str], None],
) -> None:
    image = shell_image()
    liar.serve("own", image)
    with registry.liar() as printer:
        lead(liar, image, printer.host)
        limits = ImageLimits(registries=(liar.host,))
        images = Images(podman.engine, folder, limits, to_nowhere_near().dial)
        error = refusal(images, f"{liar.host}/own")
        assert (error.kind, "cannot be reached" in error.message) == ("image", True)
        assert printer.asked == []


@pytest.mark.long
def test_registries_that_the_owner_has_named_lead_to_each_other(
    podman: Containers, folder: Path, liar: Liar
) -> None:
    image = shell_image()
    liar.serve("own", image)
    with registry.liar() as store:
        store.serve("own", image)
        leads_by_layer(liar, image, store.host)
        limits = ImageLimits(registries=(liar.host, store.host))
        images = Images(podman.engine, folder, limits, to_nowhere_near().dial)
        assert images.ensure(f"{liar.host}/own", Patience()).digest == image.digest
        assert len(store.asked) == 1


def test_no_other_registry_leads_to_one_that_the_owner_has_named(
    podman: Containers, folder: Path, liar: Liar
) -> None:
    """A stranger's own registry must not reach into the home either."""

    def public(host: str, port: int, seconds: float) -> socket.socket:
        near = to_nowhere_near().dial
        return (anywhere if f"{host}:{port}" == liar.host else near)(host, port, seconds)

    image = shell_image()
    liar.serve("own", image)
    with registry.liar() as owners:
        leads_by_manifest(liar, image, owners.host)
        images = Images(podman.engine, folder, ImageLimits(registries=(owners.host,)), public)
        assert "cannot be reached" in refusal(images, f"{liar.host}/own").message
        assert owners.asked == []


def test_a_registry_that_stalls_is_not_waited_for(
    podman: Containers, folder: Path, liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "STALL_SECONDS", 0.2)
    image = shell_image()
    liar.serve("own", image)
    liar.stalls.add(f"/v2/own/blobs/{image.fields['layers'][0]['digest']}")
    error = refusal(images_of(podman, folder), f"{liar.host}/own")
    assert error.kind == "image"
    assert "broke off" in error.message


@pytest.mark.long
def test_a_registry_that_takes_all_the_time_of_the_attempt_is_the_images_fault(
    podman: Containers, folder: Path, liar: Liar
) -> None:
    image = shell_image()
    liar.serve("own", image)
    liar.stalls.add(f"/v2/own/blobs/{image.fields['layers'][0]['digest']}")
    patience = Patience(2)
    with pytest.raises(TaskError):
        images_of(podman, folder).ensure(f"{liar.host}/own", patience)
    failure = patience.failure()
    assert failure is not None
    assert failure.kind == "image"


@pytest.mark.long
def test_a_pull_that_waits_for_another_ones_slow_registry_is_the_devices_affair(
    podman: Containers, folder: Path, liar: Liar
) -> None:
    images = images_of(podman, folder)
    patience = Patience(0.5)
    with images._pulling, pytest.raises(TaskError):
        images.ensure(f"{liar.host}/own", patience)
    failure = patience.failure()
    assert failure is not None
    assert failure.kind == "refused"


@pytest.mark.long
def test_a_pull_that_is_no_longer_wanted_ends(podman: Containers, folder: Path, liar: Liar) -> None:
    liar.serve("own", shell_image())
    with pytest.raises(TaskError, match="it was cancelled"):
        images_of(podman, folder).ensure(f"{liar.host}/own", Patience(is_stopped=lambda: True))


def test_an_owners_limits_are_kept(podman: Containers, folder: Path, liar: Liar) -> None:
    image = shell_image()
    liar.serve("own", image)
    name = f"{liar.host}/own"

    def refused(**limits: object) -> TaskError:
        return refusal(images_of(podman, folder, ImageLimits(**limits)), name)  # type: ignore[arg-type]

    for error in (
        refused(allowed=("docker.io/*",)),
        refused(image_bytes=1000),  # as it is sent
        refused(image_bytes=1_500_000),  # as it is unpacked: a bomb is no different
        refused(bytes_per_day=1000),
    ):
        assert error.kind == "refused", error.message
    assert kept(podman) == []
    images = images_of(podman, folder)
    images.ensure(name, Patience())
    pulled = json.loads((folder / "images-podman.json").read_text())["pulled_bytes"]
    assert pulled > 1_000_000
    # Earlier pulls of a day count for its limit, also after the agent's end.
    other = shell_image("other")
    liar.serve("other", other)
    again = images_of(podman, folder, ImageLimits(bytes_per_day=pulled + 1000))
    assert "a day" in refusal(again, f"{liar.host}/other").message


@pytest.mark.long
def test_the_image_that_was_used_longest_ago_makes_room(
    podman: Containers, folder: Path, liar: Liar
) -> None:
    made = [shell_image(f"number {number}") for number in range(3)]
    for number, image in enumerate(made):
        liar.serve(f"own{number}", image)
    size = 2 * len(Path("/bin/busybox").resolve().read_bytes())
    images = images_of(podman, folder, ImageLimits(cache_bytes=int(size * 1.3)), fresh_seconds=0.0)
    first = images.ensure(f"{liar.host}/own0", Patience())
    second = images.ensure(f"{liar.host}/own1", Patience())
    images.ensure(f"{liar.host}/own0", Patience())
    third = images.ensure(f"{liar.host}/own2", Patience())
    assert sorted(kept(podman)) == sorted([first.name, third.name])
    assert second.name not in kept(podman)


@pytest.mark.long
def test_an_image_that_a_job_is_about_to_run_is_not_removed(
    podman: Containers, folder: Path, liar: Liar
) -> None:
    for number in range(2):
        liar.serve(f"about{number}", shell_image(f"about {number}"))
    images = images_of(podman, folder, ImageLimits(cache_bytes=1))
    both = [images.ensure(f"{liar.host}/about{number}", Patience()) for number in range(2)]
    assert {each.name for each in both} <= set(kept(podman))


def test_a_registry_at_home_is_not_reached(podman: Containers, folder: Path, liar: Liar) -> None:
    liar.serve("own", shell_image())
    images = Images(podman.engine, folder, ImageLimits(), dial=to_nowhere_near().dial)
    error = refusal(images, f"{liar.host}/own")
    assert "cannot be reached on the public internet" in error.message
    assert liar.asked == []


def test_parts_of_an_image_that_a_killed_agent_has_fetched_are_removed(
    podman: Containers, folder: Path
) -> None:
    left = folder / "image-a1b2"
    left.mkdir()
    (left / "image.tar").write_bytes(b"half of it")
    state = folder / f"images-{podman.engine.name}.json"
    state.write_text("{}")
    images_of(podman, folder)
    assert not left.exists()
    assert state.exists()


def hostile_layers(victim: Path) -> dict[str, list[Member]]:
    """Return layers that have led out of some engine before."""
    inside = str(victim).lstrip("/")
    return {
        "a file behind an absolute link": [
            Member("link", "a", "/"), Member("file", f"a/{inside}/file")
        ],
        "a file behind links that go up": [
            Member("link", "a", "../../../../../../../../.."), Member("file", f"a/{inside}/new")
        ],
        "a name that goes up": [Member("file", f"../../../../../../../../../{inside}/file")],
        "an absolute name": [Member("file", f"{victim}/file")],
        "a hard link to a file outside": [Member("hard", "a", f"{victim}/file")],
        "a whiteout behind a link": [
            Member("link", "a", f"{victim}"), Member("file", "a/.wh.file")
        ],
        "a whiteout that goes up": [Member("file", ".wh..."), Member("file", "a/.wh...")],
        "a device": [Member("other", "a"), Member("other", "b")],
        "links behind links": [
            Member("link", "a/b/c/d", "../../.."),
            Member("link", "a/b/c/d/e", f"../../../../../../../../{inside}"),
            Member("link", "e/file", "gone"),
        ],
    }  # fmt: skip


@pytest.mark.long
def test_a_hostile_layer_touches_nothing_outside(
    containers: Containers, folder: Path, liar: Liar, tmp_path: Path
) -> None:
    """The engine unpacks layers; the agent gives it their bytes unchanged."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("mine")
    images = images_of(containers, folder)
    before = {each.name for each in tmp_path.iterdir()}
    accepted = 0
    for number, members in enumerate(hostile_layers(victim).values()):
        liar.serve(f"hostile-{number}", ImageParts(tarred(members)))
        with suppress(TaskError):
            images.ensure(f"{liar.host}/hostile-{number}", Patience())
            accepted += 1
        assert [each.name for each in victim.iterdir()] == ["file"]
        assert (victim / "file").read_text() == "mine"
        assert (victim / "file").lstat().st_nlink == 1
    assert {each.name for each in tmp_path.iterdir()} == before
    assert accepted, "no layer has reached the engine"
