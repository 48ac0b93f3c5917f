"""Routes of the referral programme, and a registration with a code."""

import socket
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.base.cases import cases
from support.base.waiting import until
from support.clients.story import credits_of, refused
from support.daemons.bounded import check_bounds
from support.daemons.service import Answer, Person, Service, running_in

from storage.accounts.users import set_email_verified
from storage.engines.store import Transaction

INFO = "/api/referral/info"
LIST = "/api/referral/list"
APPLY = "/api/referral/apply"
REGISTER = "/auth/register"
DAY = 86_400


async def info(service: Service, person: Person) -> dict[str, Any]:
    answer = await service.call("GET", INFO, token=person.token)
    assert answer.status == 200, answer.body
    return dict(answer.body)


async def code_of(service: Service, person: Person) -> str:
    return str((await info(service, person))["referral_code"])


async def apply(service: Service, person: Person, code: Any) -> Answer:
    return await service.call("POST", APPLY, {"referral_code": code}, token=person.token)


async def register(service: Service, name: str, **fields: Any) -> Answer:
    body = {"username": name, "email": f"{name}@example.com", "password": "long enough"}
    return await service.call("POST", REGISTER, {**body, **fields})


async def grow_older(tx: Transaction, user_id: str, seconds: int) -> None:
    await tx.run(
        "UPDATE users SET created_at = created_at - :seconds WHERE id = :id",
        seconds=seconds,
        id=user_id,
    )


async def test_the_info_has_the_fields_of_the_specification(service: Service) -> None:
    person = await service.person()
    answer = await service.call("GET", INFO, token=person.token)
    assert answer.status == 200
    assert {name: type(value) for name, value in answer.body.items()} == {
        "ok": bool,
        "referral_code": str,
        "referral_link": str,
        "total_referrals": int,
        "total_bonus": float,
        "reward_per_referral": int,
        "referred_reward": int,
    }
    assert answer.body["ok"] is True
    assert len(answer.body["referral_code"]) == 8
    assert (answer.body["total_referrals"], answer.body["total_bonus"]) == (0, 0)
    assert (answer.body["reward_per_referral"], answer.body["referred_reward"]) == (50, 25)
    assert await info(service, person) == answer.body


async def test_an_application_has_the_fields_of_the_specification(service: Service) -> None:
    referrer, user = await service.person(), await service.person()
    answer = await apply(service, user, await code_of(service, referrer))
    assert answer.status == 200
    assert answer.body.keys() == {"ok", "message", "bonus"}
    assert answer.body["ok"] is True
    assert type(answer.body["message"]) is str
    assert answer.body["message"]
    assert type(answer.body["bonus"]) is int
    assert answer.body["bonus"] == 25
    assert await credits_of(service, user) == 25
    assert await credits_of(service, referrer) == 50
    after = await info(service, referrer)
    assert (after["total_referrals"], after["total_bonus"]) == (1, 50)
    assert (await info(service, user))["total_referrals"] == 0


async def test_the_operator_sets_the_reward_of_a_referral(tmp_path: Path) -> None:
    market = {"referrer_reward_credits": 7, "referred_reward_credits": 0}
    async with running_in(tmp_path, market=market) as service:
        referrer, user = await service.person(), await service.person()
        answer = await apply(service, user, await code_of(service, referrer))
        assert (answer.status, answer.body["bonus"]) == (200, 0)
        after = await info(service, referrer)
        assert (after["reward_per_referral"], after["referred_reward"]) == (7, 0)
        assert (after["total_referrals"], after["total_bonus"]) == (1, 7)
        assert await credits_of(service, user) == 0
        await service.assert_audit()


@pytest.mark.parametrize(
    ("api", "start"),
    [
        ({"app_url": "https://app.example.com"}, "https://app.example.com/register?"),
        ({"app_url": "https://example.com/app/"}, "https://example.com/app/register?"),
        (
            {"app_url": "https://app.example.com", "base_url": "https://api.example.com"},
            "https://app.example.com/register?",
        ),
        ({}, None),
    ],
)
async def test_the_link_leads_to_the_application_for_any_requested_host(
    tmp_path: Path, api: dict[str, Any], start: str | None
) -> None:
    async with running_in(tmp_path, api=api) as service:
        person = await service.person()
        headers = {
            "Host": "evil.example",
            "X-Forwarded-Host": "evil.example",
            "Forwarded": "host=evil.example",
        }
        answer = await service.call("GET", INFO, token=person.token, headers=headers)
        link = answer.body["referral_link"]
        assert link.startswith(start or f"{service.url}/register?")
        assert parse_qs(urlsplit(link).query) == {"ref": [answer.body["referral_code"]]}


async def test_without_a_valid_token_there_is_no_referral(service: Service) -> None:
    code = await code_of(service, await service.person())
    for token in (None, "nonsense", ""):
        refused(await service.call("GET", INFO, token=token), "unauthorized", None, 401)
        body = {"referral_code": code}
        refused(await service.call("POST", APPLY, body, token=token), "unauthorized", None, 401)


@cases(
    ("body", "field"),
    [
        (b"{}", "referral_code"),
        (b'{"referral_code": null}', "referral_code"),
        (b'{"referral_code": 12345678}', "referral_code"),
        (b'{"referral_code": ["ABCDEFGH"]}', "referral_code"),
        (b'{"referral_code": ""}', "referral_code"),
        (b'{"referral_code": "ABCDEFG"}', "referral_code"),
        (b'{"referral_code": "ABCDEFGHJ"}', "referral_code"),
        (b'{"code": "ABCDEFGH"}', "referral_code"),
        (b'"ABCDEFGH"', None),
        (b"[]", None),
        (b"referral_code=ABCDEFGH", None),
        (b"", None),
    ],
)
async def test_a_body_that_is_no_application_is_refused(
    service: Service, body: bytes, field: str | None
) -> None:
    user = await service.person()
    answer = await service.call("POST", APPLY, raw=body, token=user.token)
    refused(answer, "invalid_field", field)
    assert await credits_of(service, user) == 0


async def test_every_refusal_of_a_code_has_its_own(service: Service) -> None:
    first, second, late = [await service.person() for _ in range(3)]
    code = await code_of(service, first)
    unknown = await apply(service, second, "AAAAAAAA")
    refused(unknown, "referral_code_not_found", "referral_code", 404)
    refused(await apply(service, first, code.lower()), "own_referral_code", "referral_code")
    assert (await apply(service, second, code.lower())).status == 200
    refused(await apply(service, second, code), "referral_already_applied", None)
    circle = await apply(service, first, await code_of(service, second))
    refused(circle, "referral_circle", "referral_code")
    await service.daemon.store.write(grow_older, late.user_id, 31 * DAY)
    refused(await apply(service, late, code), "referral_too_late", None)
    assert [await credits_of(service, each) for each in (first, second, late)] == [50, 25, 0]


async def test_registering_with_a_code_pays_both_at_once(service: Service) -> None:
    referrer = await service.person()
    answer = await register(service, "guest", ref=(await code_of(service, referrer)).lower())
    assert answer.status == 200
    assert answer.body.keys() == {"ok", "token", "user", "referral_applied"}
    assert answer.body["referral_applied"] is True
    assert answer.body["user"]["credit_balance"] == 25
    assert await credits_of(service, referrer) == 50
    guest = Person("guest@example.com", answer.body["user"]["id"], answer.body["token"])
    other = await code_of(service, await service.person())
    refused(await apply(service, guest, other), "referral_already_applied", None)


async def test_registering_with_a_code_that_is_no_good_says_so(service: Service) -> None:
    for number, ref in enumerate(("AAAAAAAA", "AAAA", "A" * 9, "")):
        answer = await register(service, f"guest{number}", ref=ref)
        assert answer.status == 200
        assert answer.body["referral_applied"] is False, ref
        assert answer.body["user"]["credit_balance"] == 0


async def test_registering_without_a_code_answers_exactly_like_a_login(service: Service) -> None:
    answers = [await register(service, "guest"), await register(service, "other", ref=None)]
    assert [answer.status for answer in answers] == [200, 200]
    assert [answer.body.keys() for answer in answers] == [{"ok", "token", "user"}] * 2


async def test_registering_with_a_code_of_another_type_is_refused(service: Service) -> None:
    refused(await register(service, "guest", ref=12345678), "invalid_field", "ref")
    assert (await register(service, "guest")).status == 200


async def test_where_mail_goes_out_a_bonus_waits_for_the_address_to_be_confirmed(
    tmp_path: Path,
) -> None:
    bounds = check_bounds(referral_seconds=0.01)
    with socket.socket() as nobody:  # takes no mail: the test needs none
        nobody.bind(("127.0.0.1", 0))
        mail = {"host": "127.0.0.1", "port": nobody.getsockname()[1], "tls": "none"}
        async with running_in(tmp_path, bounds=bounds, mail=mail) as service:
            referrer, user = await service.person(), await service.person()
            answer = await apply(service, user, await code_of(service, referrer))
            assert (answer.status, answer.body["bonus"]) == (200, 25)
            assert "confirmed" in answer.body["message"]
            assert await credits_of(service, user) == 0
            after = await info(service, referrer)
            assert (after["total_referrals"], after["total_bonus"]) == (1, 0)
            await service.daemon.store.write(set_email_verified, user.user_id, 1)
            await until(lambda: _is_paid(service, user), "the bonus is paid")
            assert await credits_of(service, referrer) == 50
            await service.assert_audit()


async def _is_paid(service: Service, person: Person) -> bool:
    return await credits_of(service, person) == 25


async def test_a_bonus_that_waits_for_another_day_says_so(tmp_path: Path) -> None:
    market = {"referral_total_daily_credits": 149}
    async with running_in(tmp_path, market=market) as service:
        code = await code_of(service, await service.person())
        first, second = await service.person(), await service.person()
        assert "next days" not in (await apply(service, first, code)).body["message"]
        later = await apply(service, second, code)
        assert (later.status, later.body["bonus"]) == (200, 25)
        assert "next days" in later.body["message"]
        assert [await credits_of(service, each) for each in (first, second)] == [25, 0]


async def test_referred_users_are_listed_without_names(service: Service) -> None:
    person = await service.person()
    assert (await service.call("GET", LIST, token=person.token)).body["referrals"] == []
    await register(service, "newcomer", ref=await code_of(service, person))
    answer = await service.call("GET", LIST, token=person.token)
    (listed,) = answer.body["referrals"]
    reward = (await info(service, person))["reward_per_referral"]
    assert (listed["state"], listed["bonus"]) == ("paid", reward)
    assert listed.keys() == {"created_at", "state", "bonus"}
