"""The second key: the terms are shown, and `yes` is typed, or nothing happens."""

import hashlib
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.base.cases import cases
from support.exits.api import TERMS, ExitApi, exit_api

from proxyctl import files
from proxyctl.api import ApiError, api_address
from proxyctl.exit.base import names, record
from proxyctl.exit.base.limits import DeviceLimits
from proxyctl.exit.base.record import Consent, ConsentError
from proxyctl.exit.commands import consent
from proxyctl.exit.commands.consent import NoConsentError


def agree(
    api: ExitApi,
    path: Path,
    answer: str = "yes",
    *,
    url: str = "",
    token: Callable[[], str] = lambda: "a token",
    limits: DeviceLimits | None = None,
    asks_again: bool = True,
) -> str:
    shown: list[str] = []
    is_asked = consent.agree(
        path,
        url or api.url,
        limits or DeviceLimits(),
        token=token,
        show=shown.append,
        ask=lambda question: shown.append(question) or answer,
        asks_again=asks_again,
    )
    assert is_asked == bool(shown)
    return "\n".join(shown)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "proxyctl" / names.CONSENT


def test_the_consent_is_shown_and_written_down(path: Path) -> None:
    limits = DeviceLimits(hours="22:00-07:00", bytes_per_second=1_000_000)
    with exit_api(certificate_sha256="cd" * 32) as api:
        shown = agree(api, path, limits=limits)
    assert "Strangers' traffic will leave from your address." in shown
    assert "\x1b" not in shown
    assert "5 GB a day; 8 Mbit/s; 16 connections at once; 20 new connections a second" in shown
    assert "hours 22:00-07:00" in shown
    kept = record.load(path)
    assert kept.terms == hashlib.sha256(TERMS.encode()).hexdigest()
    assert (kept.host, kept.port, kept.pin) == ("127.0.0.1", 1090, "cd" * 32)
    assert (kept.api, kept.token, kept.limits) == (api.url, "a token", limits)
    assert kept.agreed_at.endswith("+00:00")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == [names.CONSENT]
    assert "a token" not in repr(kept)


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ({"error": {"code": "worker_unauthorized", "message": "No."}}, "does not know this token"),
        ({"error": {"code": "rate_limited", "message": "Later."}}, "was not tried: .*Later"),
    ],
)
def test_a_refused_token_is_named_before_the_terms_are_shown(
    path: Path, refusal: dict, words: str
) -> None:
    def never(_: str) -> str:
        raise AssertionError("there is no question with an unknown token")

    with exit_api() as api:
        api.token_refusal = refusal
        with pytest.raises(NoConsentError, match=words):
            consent.agree(
                path, api.url, DeviceLimits(), token=lambda: "a token", show=never, ask=never
            )
        assert api.tried == ["a token"]
    assert not path.exists()


@pytest.mark.parametrize("answer", ["", "y", "Yes", "YES", "no", "yes please"])
def test_nothing_but_yes_agrees(path: Path, answer: str) -> None:
    with exit_api() as api, pytest.raises(NoConsentError, match="nothing was agreed to"):
        agree(api, path, answer)
    assert not path.exists()


def test_the_same_is_agreed_to_once_where_the_owner_wants_that(path: Path) -> None:
    with exit_api() as api:
        assert "Type yes" in agree(api, path, asks_again=False)
        before = record.load(path)
        files.write(path.with_name(names.CONTROL), {"paused": True})
        assert agree(api, path, "no", asks_again=False) == ""
        assert record.load(path) == before
        assert agree(api, path, "no", token=lambda: "another", asks_again=False) == ""
        assert record.load(path) == replace(before, token="another")
        assert files.read(path.with_name(names.CONTROL)) == {"paused": True}
        api.token_refusal = {"error": {"code": "worker_unauthorized", "message": "No."}}
        with pytest.raises(NoConsentError, match="does not know this token"):
            agree(api, path, asks_again=False)
        api.token_refusal = None
        assert "Type yes" in agree(api, path)


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "Others.", "terms_hash": hashlib.sha256(b"Others.").hexdigest()},
        {"port": 1091},
        {"host": "localhost"},
        {"certificate_sha256": "ab" * 32},
    ],
)
def test_any_other_consent_is_asked_for(path: Path, fields: dict) -> None:
    with exit_api() as api:
        agree(api, path)
        api.terms.update(fields)
        with pytest.raises(NoConsentError, match="nothing was agreed to"):
            agree(api, path, "no", asks_again=False)


def test_other_limits_and_a_withdrawn_consent_are_asked(path: Path) -> None:
    with exit_api() as api:
        agree(api, path)
        with pytest.raises(NoConsentError, match="nothing was agreed to"):
            agree(api, path, "no", limits=DeviceLimits(hours="22:00-07:00"), asks_again=False)
        consent.withdraw(path.parent)
        with pytest.raises(NoConsentError, match="nothing was agreed to"):
            agree(api, path, "no", asks_again=False)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"text": "Another text."}, "do not match their hash"),
        ({"terms_hash": "\u00e4"}, "do not match their hash"),
        ({"text": None}, "shows no terms"),
        ({"host": ""}, "accepts no exits"),
        ({"port": 0}, "accepts no exits"),
        ({"port": "1090"}, "accepts no exits"),
        ({"certificate_sha256": "zz"}, "its certificate in an unknown form"),
    ],
)
def test_terms_that_cannot_be_are_not_agreed_to(path: Path, fields: dict, words: str) -> None:
    with exit_api(**fields) as api, pytest.raises(NoConsentError, match=words):
        agree(api, path)
    assert not path.exists()


@cases("url", ["http://market.example", "market.example", "ftp://127.0.0.1", "http://", "https://"])
def test_a_token_does_not_cross_the_network_in_clear(url: str) -> None:
    with pytest.raises(ApiError):
        api_address(url)


def test_addresses_of_an_api_have_one_spelling() -> None:
    assert api_address("https://market.example/") == "https://market.example"
    assert api_address("http://localhost:8080") == "http://localhost:8080"
    assert api_address("http://[::1]:8080/") == "http://[::1]:8080"


def test_an_api_that_is_not_there_is_named(path: Path) -> None:
    with exit_api() as api:
        url = api.url
    with pytest.raises(ApiError, match="cannot be reached"):
        agree(api, path, url=url)


def test_a_withdrawal_is_sent_and_leaves_no_token(path: Path) -> None:
    with exit_api() as api:
        agree(api, path)
        assert consent.withdraw(path.parent).startswith("withdrawn")
        assert api.revoked == ["a token"]
    assert not path.exists()
    assert files.read(path.parent / names.CONTROL) == {"paused": True, "revoked": True}
    assert "no consent" in consent.withdraw(path.parent)


def test_a_withdrawal_holds_here_although_the_service_does_not_get_it(path: Path) -> None:
    with exit_api() as api:
        agree(api, path)
        api.refusal = {"ok": False, "error": {"code": "x", "message": "Not \x1b[1mnow."}}
        with pytest.raises(ApiError, match=r"Not \[1mnow"):
            consent.withdraw(path.parent)
        assert record.load(path).terms == ""
        assert (files.read(path.parent / names.CONTROL) or {})["revoked"] is True
        api.refusal = None
        assert consent.withdraw(path.parent).startswith("withdrawn")
    assert not path.exists()


def test_where_the_token_is_not_known_there_is_nothing_left_to_withdraw(path: Path) -> None:
    with exit_api() as api:
        agree(api, path)
        error = {"code": "worker_unauthorized", "message": "The worker token was revoked."}
        api.refusal = {"ok": False, "error": error}
        assert consent.withdraw(path.parent).startswith("withdrawn")
    assert not path.exists()


def test_a_token_is_not_sent_to_where_a_redirect_leads(path: Path) -> None:
    with exit_api() as api, exit_api() as other:
        agree(api, path)
        api.location = f"{other.url}/api/worker/exit/revoke"
        with pytest.raises(ApiError, match="302"):
            consent.withdraw(path.parent)
        assert other.revoked == []


def test_a_new_consent_removes_the_files_of_an_old_one(path: Path) -> None:
    left = [path.with_name(name) for name in (names.CONTROL, names.NODES)]
    for each in left:
        files.write(each, {"revoked": True})
    with exit_api() as api:
        agree(api, path)
    assert [each.exists() for each in left] == [False, False]


def stored() -> Consent:
    return Consent("https://a", "b", 1, "", "token", "ab" * 32, "", DeviceLimits())


def test_a_record_that_others_can_read_is_refused(path: Path) -> None:
    record.save(path, stored())
    path.chmod(0o640)
    with pytest.raises(ConsentError, match="chmod 600"):
        record.load(path)


@pytest.mark.parametrize(
    "change",
    [{"port": 0}, {"port": "1"}, {"host": ""}, {"pin": "ab"}, {"terms": 1}, {"token": None}],
)
def test_a_record_that_cannot_be_is_refused(path: Path, change: dict) -> None:
    record.save(path, stored())
    files.write(path, {**(files.read(path) or {}), **change})
    with pytest.raises(ConsentError, match="not complete"):
        record.load(path)


def test_a_mistyped_limit_is_named(path: Path) -> None:
    record.save(path, stored())
    files.write(path, {**(files.read(path) or {}), "limits": {"bytes_per_dya": 1}})
    with pytest.raises(ConsentError, match=r"limits.bytes_per_dya: is not known"):
        record.load(path)


def test_a_record_is_read_as_it_was_written(path: Path) -> None:
    record.save(path, replace(stored(), limits=DeviceLimits(ports=(443,), on_metered=True)))
    assert record.load(path).limits == DeviceLimits(ports=(443,), on_metered=True)
    with pytest.raises(ConsentError, match="no user of this device has agreed"):
        record.load(path.with_name("missing"))
