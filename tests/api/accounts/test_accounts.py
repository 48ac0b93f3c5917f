"""Routes of accounts: register, log in, who am I."""

import uuid
from pathlib import Path
from typing import Any

import jwt
import pytest
from support.base.cases import cases
from support.daemons.service import TEST_SETTINGS, Answer, Person, Service, running_in

from market.money.money import Currency
from proxyd.loop import clock

KEY = TEST_SETTINGS["auth"]["signing_key"]
ADA: dict[str, Any] = {
    "username": "ada",
    "email": "ada@example.com",
    "password": "correct horse",
}
LOGIN_FIELDS = {"ok", "token", "user"}
USER_FIELDS = {"id", "username", "email", "credit_balance", "usd_balance"}
PROFILE_FIELDS = {"ok", "id", "username", "credit_balance", "usd_balance", "email_verified"}
NOT_A_TEXT = [None, 5, 1.5, True, [], {}, ["a"], {"a": "b"}]


async def register(service: Service, **changes: Any) -> Answer:
    return await service.call("POST", "/auth/register", {**ADA, **changes})


async def log_in(service: Service, **changes: Any) -> Answer:
    body = {"email": ADA["email"], "password": ADA["password"], **changes}
    return await service.call("POST", "/auth/login", body)


def without(body: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != field}


def refused(answer: Answer, field: str, code: str = "invalid_field") -> None:
    assert answer.status == 400, answer.body
    assert answer.body.keys() == {"ok", "error"}
    assert answer.body["ok"] is False
    assert answer.body["error"].keys() == {"code", "message", "field"}
    assert answer.body["error"]["message"]
    assert (answer.code, answer.field) == (code, field)


def unauthorized(answer: Answer) -> None:
    assert answer.status == 401, answer.body
    assert answer.body.keys() == {"ok", "error"}
    assert answer.body["ok"] is False
    assert answer.body["error"].keys() == {"code", "message"}
    assert answer.code == "unauthorized"
    assert answer.body["error"]["message"]
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.headers["Content-Type"] == "application/json"


def is_login(answer: Answer, *, username: str = "ada", email: str = "ada@example.com") -> None:
    assert answer.status == 200, answer.body
    assert answer.body.keys() == LOGIN_FIELDS
    assert answer.body["ok"] is True
    assert isinstance(answer.body["token"], str)
    user = answer.body["user"]
    assert user.keys() == USER_FIELDS
    assert str(uuid.UUID(user["id"])) == user["id"]
    assert (user["username"], user["email"]) == (username, email)
    for balance in ("credit_balance", "usd_balance"):
        assert isinstance(user[balance], float)
        assert user[balance] == 0


async def test_registering_answers_exactly_like_a_login(service: Service) -> None:
    answer = await register(service)
    is_login(answer)
    assert answer.headers["Content-Type"] == "application/json"


async def test_a_login_has_the_fields_of_the_specification(service: Service) -> None:
    registered = await register(service)
    answer = await log_in(service)
    is_login(answer)
    assert answer.body["user"] == registered.body["user"]


async def test_me_has_the_six_fields_of_the_specification_and_no_more(service: Service) -> None:
    login = (await register(service)).body
    answer = await service.call("GET", "/auth/me", token=login["token"])
    assert answer.status == 200
    assert answer.body.keys() == PROFILE_FIELDS
    assert answer.body["ok"] is True
    assert answer.body["id"] == login["user"]["id"]
    assert answer.body["username"] == "ada"
    assert isinstance(answer.body["credit_balance"], float)
    assert isinstance(answer.body["usd_balance"], float)
    assert answer.body["email_verified"] is False


async def test_every_caller_can_read_whether_e_mails_go_out(
    service: Service, tmp_path: Path
) -> None:
    folder = tmp_path / "mailing"
    folder.mkdir()
    async with running_in(folder, mail={"host": "127.0.0.1", "port": 9}) as mailing:
        for each, has_mail in ((service, False), (mailing, True)):
            answer = await each.call("GET", "/auth/terms")
            assert (answer.status, answer.body) == (200, {"ok": True, "has_mail": has_mail})


async def test_both_tokens_of_two_logins_are_valid_and_differ(service: Service) -> None:
    first = (await register(service)).body["token"]
    second = (await log_in(service)).body["token"]
    assert first != second
    for token in (first, second):
        assert (await service.call("GET", "/auth/me", token=token)).status == 200


async def test_balances_are_shown_to_the_millionth(service: Service) -> None:
    token = (await register(service)).body["token"]
    await service.fund(ADA["email"], "12.345678", Currency.USD)
    await service.fund(ADA["email"], "0.000001", Currency.CREDIT)
    for shown in (
        (await service.call("GET", "/auth/me", token=token)).body,
        (await log_in(service)).body["user"],
    ):
        assert (shown["usd_balance"], shown["credit_balance"]) == (12.345678, 0.000001)


@pytest.mark.parametrize("field", ["username", "email", "password"])
async def test_every_field_of_a_registration_is_required(service: Service, field: str) -> None:
    refused(await service.call("POST", "/auth/register", without(ADA, field)), field)


@pytest.mark.parametrize("field", ["email", "password"])
async def test_every_field_of_a_login_is_required(service: Service, field: str) -> None:
    body = without(without(ADA, "username"), field)
    refused(await service.call("POST", "/auth/login", body), field)


@pytest.mark.parametrize("field", ["username", "email", "password"])
async def test_every_field_of_a_registration_wants_a_text(service: Service, field: str) -> None:
    for value in [*NOT_A_TEXT, ""]:
        refused(await register(service, **{field: value}), field)


@pytest.mark.parametrize("field", ["email", "password"])
async def test_every_field_of_a_login_wants_a_text(service: Service, field: str) -> None:
    await register(service)
    for value in [*NOT_A_TEXT, ""]:
        refused(await log_in(service, **{field: value}), field)


async def test_nothing_is_left_of_a_refused_registration(service: Service) -> None:
    refused(await register(service, password="short"), "password")
    assert (await log_in(service, password="short")).status == 401
    is_login(await register(service))


@pytest.mark.parametrize("length", [51, 1025, 100_000])
async def test_a_user_name_that_is_too_long_is_refused(service: Service, length: int) -> None:
    refused(await register(service, username="a" * length), "username")


@pytest.mark.parametrize("username", ["a", "a" * 50, "Zoë", "名前", "a.b-c_d"])
async def test_a_user_name_has_one_to_fifty_characters(service: Service, username: str) -> None:
    is_login(await register(service, username=username), username=username)


@cases("username", ["a b", " ada", "ada\n", "a\tb", "a\x07", "a\u200bb", "a\u2028b"])
async def test_a_user_name_has_no_spaces_or_control_characters(
    service: Service, username: str
) -> None:
    refused(await register(service, username=username), "username")


@cases(
    "email",
    [
        "ada",
        "@",
        "ada@",
        "@example.com",
        "ada@@example.com",
        "ada@b@example.com",
        "ada@example..com",
        "ada@.example.com",
        "ada@example.com.",
        "a da@example.com",
        "ada@exam ple.com",
        "ada@example.com\n",
        "ada@example.com\r\nBcc: all@example.com",
        "ada\x7f@example.com",
        ".ada@example.com",
        "ada.@example.com",
        "a..da@example.com",
        "<ada@example.com>",
        "all@example.com,ada@example.com",
        "all,ada@example.com",
        "all;ada@example.com",
        "group:ada@example.com",
        '"ada"@example.com',
        "ada(all)@example.com",
        "ada@[192.0.2.1]",
        "ada\\@example.com",
        "ada@example.com>",
        "ada@example.com;b",
        "a" * 243 + "@example.com",
        "a" * 2000 + "@example.com",
    ],
)
async def test_a_text_that_is_no_address_is_refused(service: Service, email: str) -> None:
    refused(await register(service, email=email), "email")


@pytest.mark.parametrize(
    "email", ["a@b.example", "first.last+tag@sub.example.com", "a" * 242 + "@example.com"]
)
async def test_addresses_of_every_ordinary_form_are_taken(service: Service, email: str) -> None:
    is_login(await register(service, email=email), email=email)
    is_login(await log_in(service, email=email), email=email)


@pytest.mark.parametrize("length", [1, 7, 129, 1025, 100_000])
async def test_a_password_of_another_length_is_refused(service: Service, length: int) -> None:
    refused(await register(service, password="p" * length), "password")


@pytest.mark.parametrize(
    "password", ["p" * 8, "p" * 128, "ö" * 128, "😀" * 8, " " * 8, "ein\tTab\n"]
)
async def test_a_password_has_8_to_128_characters(service: Service, password: str) -> None:
    is_login(await register(service, password=password))
    is_login(await log_in(service, password=password))
    assert (await log_in(service, password=password[:-1] + "?")).status == 401


async def test_a_password_is_compared_to_its_last_character(service: Service) -> None:
    await register(service, password="p" * 128)
    for wrong in ("p" * 127, "p" * 129, "p" * 1024):
        assert (await log_in(service, password=wrong)).status == 401


async def test_a_password_may_hold_a_backslash_before_u0000(service: Service) -> None:
    password = "C:\\u0000"  # eight characters, none of them U+0000
    is_login(await register(service, password=password))
    is_login(await log_in(service, password=password))


@pytest.mark.parametrize("email", ["ADA@EXAMPLE.COM", "Ada@Example.Com", "ada@example.COM"])
async def test_addresses_compare_without_case(service: Service, email: str) -> None:
    await register(service)
    is_login(await log_in(service, email=email))
    refused(await register(service, username="other", email=email), "email", "email_taken")


async def test_an_address_is_shown_as_it_was_registered(service: Service) -> None:
    is_login(await register(service, email="Ada@Example.com"), email="Ada@Example.com")
    is_login(await log_in(service), email="Ada@Example.com")


@pytest.mark.parametrize("username", ["ada", "ADA", "\uff41\uff44\uff41"])
async def test_a_taken_user_name_is_refused(service: Service, username: str) -> None:
    await register(service)
    answer = await register(service, email="other@example.com", username=username)
    refused(answer, "username", "username_taken")


async def test_a_taken_address_keeps_its_password(service: Service) -> None:
    await register(service)
    answer = await register(service, username="other", password="another password")
    refused(answer, "email", "email_taken")
    assert (await log_in(service, password="another password")).status == 401
    is_login(await log_in(service))


async def test_wrong_passwords_and_unknown_addresses_are_answered_alike(service: Service) -> None:
    await register(service)
    answers = [
        await log_in(service, password="wrong horse"),
        await log_in(service, email="nobody@example.com"),
        await log_in(service, email="not an address"),
        await log_in(service, password="short"),
        await log_in(service, password=ADA["password"].upper()),
    ]
    for answer in answers:
        assert answer.status == 401
        assert answer.code == "invalid_credentials"
        assert answer.field is None
        assert answer.body == answers[0].body
        assert answer.headers.keys() == answers[0].headers.keys()


@pytest.mark.parametrize("ref", ["ABCDEFGH", "x", ""])
async def test_an_unknown_ref_does_not_stop_a_registration(service: Service, ref: str) -> None:
    answer = await register(service, ref=ref)
    assert answer.body.pop("referral_applied") is False
    is_login(answer)


async def test_a_ref_of_null_is_no_ref(service: Service) -> None:
    is_login(await register(service, ref=None))


@pytest.mark.parametrize("ref", [5, True, [], {}])
async def test_a_ref_wants_a_text(service: Service, ref: Any) -> None:
    refused(await register(service, ref=ref), "ref")


async def test_unknown_fields_are_ignored(service: Service) -> None:
    is_login(await register(service, usd_balance=100, id="x", extra={"deep": [1]}))
    is_login(await log_in(service, extra=None))


async def test_no_answer_shows_a_password(service: Service) -> None:
    answers = [await register(service), await log_in(service), await log_in(service, password="x")]
    for answer in answers:
        assert ADA["password"] not in str(answer.body)
        assert "argon2" not in str(answer.body)


def claims_of(person: Person) -> dict[str, Any]:
    return dict(jwt.decode(person.token, KEY, algorithms=["HS256"]))


def signed(claims: dict[str, Any], key: str = KEY, algorithm: str = "HS256") -> str:
    return jwt.encode(claims, key, algorithm=algorithm)


async def test_a_token_is_a_jwt_for_24_hours(service: Service) -> None:
    person = await service.person()
    claims = claims_of(person)
    assert jwt.get_unverified_header(person.token)["alg"] == "HS256"
    assert claims.keys() == {"sub", "sid", "iat", "exp", "jti"}
    assert claims["sub"] == person.user_id
    assert claims["exp"] - claims["iat"] == 86_400
    assert claims["iat"] <= clock.seconds()


async def test_a_token_signed_again_with_the_same_key_is_valid(service: Service) -> None:
    person = await service.person()
    answer = await service.call("GET", "/auth/me", token=signed(claims_of(person)))
    assert answer.status == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_scheme_is_read_without_case(service: Service, scheme: str) -> None:
    person = await service.person()
    headers = {"Authorization": f"{scheme} {person.token}"}
    assert (await service.call("GET", "/auth/me", headers=headers)).status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/auth/me"),
        ("POST", "/api/bandwidth/create"),
        ("GET", "/api/bandwidth/sessions"),
        ("POST", "/api/bandwidth/end"),
    ],
)
async def test_protected_paths_want_a_token_before_anything_else(
    service: Service, method: str, path: str
) -> None:
    unauthorized(await service.call(method, path))
    unauthorized(await service.call(method, path, token="nonsense"))
    if method == "POST":
        unauthorized(await service.call(method, path, raw=b"not JSON", token="nonsense"))


@cases(
    "header",
    [
        "",
        " ",
        "Bearer",
        "Bearer ",
        "Bearer  ",
        "Bearer x",
        "Bearer a.b.c",
        "Bearer ..",
        "Bearer null",
        "Basic YWRhOmNvcnJlY3QgaG9yc2U=",
        "Bearer " + "a" * 4000,
        "Bearer " + "a." * 1000,
        "Bearer tök.en.ö",
    ],
)
async def test_a_malformed_authorization_is_refused(service: Service, header: str) -> None:
    unauthorized(await service.call("GET", "/auth/me", headers={"Authorization": header}))


async def test_a_valid_token_under_another_scheme_is_refused(service: Service) -> None:
    person = await service.person()
    for header in (f"Basic {person.token}", f"Token {person.token}", person.token):
        unauthorized(await service.call("GET", "/auth/me", headers={"Authorization": header}))


async def test_a_token_elsewhere_than_in_its_header_counts_for_nothing(service: Service) -> None:
    person = await service.person()
    unauthorized(await service.call("GET", f"/auth/me?token={person.token}"))
    unauthorized(await service.call("GET", "/auth/me", headers={"X-Worker-Token": person.token}))
    unauthorized(await service.call("GET", "/auth/me", headers={"Cookie": f"token={person.token}"}))


async def test_a_token_of_another_key_is_refused(service: Service) -> None:
    person = await service.person()
    token = signed(claims_of(person), key="another key, and long enough for it")
    unauthorized(await service.call("GET", "/auth/me", token=token))


async def test_a_token_of_another_algorithm_is_refused(service: Service) -> None:
    person = await service.person()
    claims = claims_of(person)
    unsigned = jwt.encode(claims, None, algorithm="none")
    other = jwt.encode(claims, KEY * 2, algorithm="HS512")
    same_key = jwt.encode(claims, KEY + "k" * 24, algorithm="HS512")
    for token in (unsigned, other, same_key):
        unauthorized(await service.call("GET", "/auth/me", token=token))


async def test_a_changed_token_is_refused(service: Service) -> None:
    person, other = await service.person(), await service.person()
    head, payload, signature = person.token.split(".")
    foreign = other.token.split(".")[1]
    flipped = ("B" if signature[0] == "A" else "A") + signature[1:]
    for token in (
        f"{head}.{foreign}.{signature}",
        f"{head}.{payload}.{flipped}",
        f"{head}.{payload}.",
        f"{head}.{payload}",
    ):
        unauthorized(await service.call("GET", "/auth/me", token=token))


async def test_an_expired_token_is_refused(service: Service) -> None:
    person = await service.person()
    now = clock.seconds()
    claims = {**claims_of(person), "iat": now - 86_400, "exp": now}
    unauthorized(await service.call("GET", "/auth/me", token=signed(claims)))
    claims["exp"] = now + 3600
    assert (await service.call("GET", "/auth/me", token=signed(claims))).status == 200


@pytest.mark.parametrize("claim", ["sub", "sid", "iat", "exp", "jti"])
async def test_a_token_without_one_of_its_claims_is_refused(service: Service, claim: str) -> None:
    person = await service.person()
    token = signed(without(claims_of(person), claim))
    unauthorized(await service.call("GET", "/auth/me", token=token))


@pytest.mark.parametrize(
    ("claim", "value"),
    [("exp", "soon"), ("exp", []), ("iat", "then"), ("sub", 5), ("sid", 5), ("sid", "")],
)
async def test_a_token_with_a_claim_of_another_type_is_refused(
    service: Service, claim: str, value: Any
) -> None:
    person = await service.person()
    token = signed({**claims_of(person), claim: value})
    unauthorized(await service.call("GET", "/auth/me", token=token))


async def test_a_token_is_good_only_for_its_own_login_session(service: Service) -> None:
    person, other = await service.person(), await service.person()
    crossed = {**claims_of(person), "sub": other.user_id}
    unknown = {**claims_of(person), "sid": str(uuid.uuid4())}
    for claims in (crossed, unknown):
        unauthorized(await service.call("GET", "/auth/me", token=signed(claims)))


FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


async def test_logins_are_listed_with_where_they_came_from_and_ended(service: Service) -> None:
    me, other = await service.person(), await service.person()
    body = {"email": me.email, "password": "long enough"}
    told = {"User-Agent": FIREFOX}
    second = (await service.call("POST", "/auth/login", body, headers=told)).body["token"]
    third = (await service.call("POST", "/auth/login", body)).body["token"]
    answer = await service.call("GET", "/auth/logins", token=second)
    listed = answer.body["logins"]
    assert len(listed) == 3
    (present,) = [each for each in listed if each["is_present"]]
    assert present["user_agent"] == "Firefox, Linux"
    assert present["network"]
    last = next(each for each in listed if not each["is_present"])
    path = f"/auth/logins/{last['id']}/end"
    refused = await service.call("POST", path, token=other.token)
    assert (refused.status, refused.code) == (404, "login_not_found")
    nobody = await service.call("POST", "/auth/logins/none/end", token=second)
    assert nobody.code == "login_not_found"
    tokens = [me.token, third]
    assert (await service.call("POST", path, token=second)).status == 200
    assert (await service.call("POST", path, token=second)).code == "login_not_found"
    valid = [(await service.call("GET", "/auth/me", token=each)).status for each in tokens]
    assert sorted(valid) == [200, 401]
    assert (await service.call("POST", "/auth/logins/end-others", token=second)).status == 200
    for token in tokens:
        assert (await service.call("GET", "/auth/me", token=token)).status == 401
    assert len((await service.call("GET", "/auth/logins", token=second)).body["logins"]) == 1
    assert (await service.call("GET", "/auth/me", token=other.token)).status == 200
