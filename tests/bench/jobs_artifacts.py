"""How fast a file of a gibibyte goes up and down over HTTP, beside `cp` on the same disk.

An upload is hashed, written and made durable before it counts, so the rivals are a `cp` that also
waits for the disk, and `sha256sum`. They take turns; only ratios mean anything.
"""

import hashlib
import http.client
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from support.daemons import process
from support.daemons.process import Process

from bench import report
from bench.api import UNBOUNDED
from bench.report import Samples

GIB = 1024**3
ROUNDS = 5
PIECE_BYTES = 1024 * 1024
WANTED = 0.8  # of `cp`
ROWS = (
    ("up, whole", "cp, and sync"),
    ("up, without the end", "cp"),
    ("down", "cp"),
)


def up(daemon: Process, token: str, path: Path, digest: str, number: int) -> tuple[float, str]:
    """Send a file; return the seconds of the transfer alone, and the artifact."""
    body = {"name": f"{number}.bin", "size_bytes": path.stat().st_size, "sha256": digest}
    status, announced = daemon.call("POST", "/api/artifacts", body, token)
    assert status == 200, announced
    began = time.monotonic()
    with (
        closing(http.client.HTTPConnection(urlsplit(daemon.api).netloc)) as connection,
        path.open("rb") as file,
    ):
        headers = {"Authorization": f"Bearer {token}", "Content-Length": str(body["size_bytes"])}
        connection.putrequest("PUT", announced["upload"]["url"])
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        connection.sock.sendfile(file)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()
    return time.monotonic() - began, announced["artifact_id"]


def finish(daemon: Process, token: str, artifact_id: str) -> None:
    status, done = daemon.call("POST", f"/api/artifacts/{artifact_id}/done", {}, token)
    assert status == 200, done


def down(daemon: Process, token: str, artifact_id: str, target: Path) -> None:
    with (
        closing(http.client.HTTPConnection(urlsplit(daemon.api).netloc)) as connection,
        target.open("wb") as file,
    ):
        headers = {"Authorization": f"Bearer {token}"}
        connection.request("GET", f"/api/artifacts/{artifact_id}", headers=headers)
        response = connection.getresponse()
        assert response.status == 200
        while piece := response.read(PIECE_BYTES):
            file.write(piece)


def timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measured(daemon: Process, token: str, folder: Path) -> Samples:
    """Let all take turns."""
    samples = Samples()
    source, copy, fetched = folder / "source", folder / "copy", folder / "fetched"
    for number in range(ROUNDS):
        # Other bytes each time: a content that is there already would not be written again.
        content = os.urandom(PIECE_BYTES)
        digest = hashlib.sha256()
        with source.open("wb") as file:
            for at in range(GIB // PIECE_BYTES):
                piece = at.to_bytes(8, "big") + content[8:]
                file.write(piece)
                digest.update(piece)
        run("sync")
        rates = {"cp": timed(lambda: run("cp", str(source), str(copy)))}
        copy.unlink()
        rates["cp, and sync"] = timed(
            lambda: (run("cp", str(source), str(copy)), run("sync", str(copy)))
        )
        copy.unlink()
        rates["sha256sum"] = timed(lambda: run("sha256sum", str(source)))
        transfer, artifact_id = up(daemon, token, source, digest.hexdigest(), number)
        end = timed(lambda artifact_id=artifact_id: finish(daemon, token, artifact_id))
        rates["up, without the end"], rates["up, whole"] = transfer, transfer + end
        rates["down"] = timed(
            lambda artifact_id=artifact_id: down(daemon, token, artifact_id, fetched)
        )
        fetched.unlink()
        daemon.call("DELETE", f"/api/artifacts/{artifact_id}", token=token)
        for what, seconds in rates.items():
            samples.add("file", what, GIB / 1e6 / seconds)
    return samples


def table(samples: Samples) -> str:
    """Return the results as Markdown, beside the wanted figures."""
    lines = [
        "| 1 GiB | MB/s | beside | MB/s | ratio (wanted) |",
        "|---|---|---|---|---|",
    ]
    for ours, theirs in ROWS:
        lines.append(
            f"| {ours} | {samples.median('file', ours) or 0:,.0f} | {theirs} | "
            f"{samples.median('file', theirs) or 0:,.0f} | "
            f"{samples.ratio('file', ours, theirs) or 0:.2f} ({WANTED}) |"
        )
    lines.append(f"| | | sha256sum | {samples.median('file', 'sha256sum') or 0:,.0f} | |")
    return "\n".join(lines)


def measure() -> str:
    """Run it, and return its results."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as folder:
        url = f"sqlite:///{folder}/proxyd.db"
        email, password = process.funded(url)
        with process.serving(url, **UNBOUNDED) as daemon:
            token = daemon.log_in(email, password)
            samples = measured(daemon, token, Path(folder))
    return table(samples)


def main() -> None:
    written = measure()
    print(written)
    report.rewrite("bench-job-artifacts", written)


if __name__ == "__main__":
    main()
