"""The certificate that is made for the exits' port."""

import ssl
import threading
from hashlib import sha256
from pathlib import Path

import pytest
from support.daemons.service import settings_for

from proxyd.exits.attached.certificate import (
    FILE_NAME,
    fingerprint,
    next_certificate_problems,
    own_certificate,
)

NOW = 1_700_000_000


def test_it_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    path = own_certificate(tmp_path / "new", NOW)
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    assert own_certificate(tmp_path / "new", NOW) == path
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [FILE_NAME]


def test_starts_at_once_get_the_same_one(tmp_path: Path) -> None:
    seen: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: seen.append(own_certificate(tmp_path, NOW).read_bytes()))
        for _ in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(seen) == 8
    assert len(set(seen)) == 1


def test_it_serves_and_a_client_sees_its_fingerprint(tmp_path: Path) -> None:
    path = own_certificate(tmp_path, NOW)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    client = ssl.create_default_context(cafile=str(path))
    client.check_hostname = False
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server),
    ]
    done = 0
    while done < 2:
        done = 0
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            done += 1
    shown = sides[1].getpeercert(binary_form=True)
    assert shown is not None
    assert fingerprint(path) == sha256(shown).hexdigest()


def test_a_file_without_a_certificate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.pem"
    path.write_text("nothing")
    with pytest.raises(ValueError, match=r"empty\.pem"):
        fingerprint(path)


def test_an_error_in_the_next_certificate_is_named_before_the_start(tmp_path: Path) -> None:
    def problems(path: Path | str) -> list[str]:
        settings = settings_for("sqlite:///unused.db", exits={"next_tls_cert": str(path)})
        return [*next_certificate_problems(settings)]

    assert problems("") == []
    assert problems(own_certificate(tmp_path, NOW)) == []
    (tmp_path / "empty.pem").touch()
    for path in (tmp_path / "missing.pem", tmp_path / "empty.pem"):
        (problem,) = problems(path)
        assert problem.startswith("exits.next_tls_cert: ")
        assert str(path) in problem
