"""The files of the console: under a digest for ever, its addresses as shells, by one policy."""

import gzip
import re
from pathlib import Path

import pytest
from support.daemons.service import Service, running_in

from api.console import ENTRIES, FOLDER, POLICY, Console


def base_of(shell: str) -> str:
    """Return where the assets of a shell are."""
    return re.findall(r'src="(/console/[0-9a-f]{16}/)app\.js"', shell)[0]


async def body_of(service: Service, path: str) -> str:
    async with service.http.get(service.url + path) as answer:
        assert answer.status == 200, path
        return await answer.text()


@pytest.mark.parametrize("path", ["/console", "/console/sessions/x", "/console/a/b/c", *ENTRIES])
async def test_any_address_is_the_shell(service: Service, path: str) -> None:
    async with service.http.get(f"{service.url}{path}?token=%3Cscript%3E") as answer:
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert answer.headers["Cache-Control"] == "no-cache"
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert await answer.text() == await body_of(service, "/console")
    refused = await service.call("POST", path, {})
    assert (refused.code, refused.headers["Allow"]) == ("method_not_allowed", "GET, HEAD")


async def test_every_file_is_below_the_digest_for_ever(service: Service) -> None:
    base = base_of(await body_of(service, "/console"))
    for path in FOLDER.rglob("*"):
        if path.is_dir() or path.name == "shell.html":
            continue
        name = path.relative_to(FOLDER).as_posix()
        async with service.http.get(service.url + base + name) as answer:
            assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable", name
            assert answer.headers["Content-Security-Policy"] == POLICY
            assert await answer.read() == path.read_bytes()


async def test_a_file_of_another_version_is_missing(service: Service) -> None:
    for path in (f"/console/{'0' * 16}/app.js", f"/console/{'0' * 16}", "/consoles", "/login/x"):
        assert (await service.call("GET", path)).code == "no_such_path"
    base = base_of(await body_of(service, "/console"))
    for name in ("none.js", "shell.html", "lib/", ""):
        assert (await service.call("GET", base + name)).code == "no_such_path"


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("gzip", "gzip"),
        ("br, GZIP;q=0.5", "gzip"),
        ("gzip;q=0", None),
        ("gzip; q=0.000, br", None),
        ("identity", None),
        ("x-gzipped", None),
        ("", None),
    ],
)
async def test_a_client_that_takes_gzip_gets_it(
    service: Service, accepted: str, coding: str | None
) -> None:
    headers = {"Accept-Encoding": accepted}
    url = service.url + base_of(await body_of(service, "/console")) + "app.css"
    async with service.http.get(url, headers=headers, auto_decompress=False) as answer:
        assert answer.headers.get("Content-Encoding") == coding
        assert answer.headers["Vary"] == "Accept-Encoding"
        sent = await answer.read()
    plain = gzip.decompress(sent) if coding else sent
    assert plain == (FOLDER / "app.css").read_bytes()


async def test_the_digest_is_that_of_every_file(tmp_path: Path) -> None:
    (tmp_path / "shell.html").write_text("${base} ${preloads}")
    (tmp_path / "app.js").write_text("1")
    digests = [Console(tmp_path).digest]
    for name, text in (("app.js", "2"), ("shell.html", "${base}"), ("words.json", "{}")):
        (tmp_path / name).write_text(text)
        digests.append(Console(tmp_path).digest)
    assert len(set(digests)) == 4
    assert Console(tmp_path).digest == digests[-1]


async def test_without_the_console_its_addresses_are_nothing(tmp_path: Path) -> None:
    api = {"console": False, "app_url": "https://app.example.com"}
    async with running_in(tmp_path, api=api) as service:
        for path in ("/console", "/console/sessions", *ENTRIES):
            assert (await service.call("GET", path)).code == "no_such_path"
