"""Logins of the staff through the API: their proof, their end, and attacks on them."""

import asyncio

import pytest
from support.base.cases import cases
from support.clients.staff import StaffApi
from support.market.staff import PASSWORD, code_at

from market.staff.base.roles import MATRIX, Action, Role
from proxyd.loop import clock
from storage.engines.store import Transaction


async def test_a_password_and_a_code_log_a_member_in(staff: StaffApi) -> None:
    olga = await staff.hire(Role.OPERATOR, "olga")
    answer = await staff.try_login("OLGA@staff.example.com", code_at(olga, clock.seconds()))
    assert answer.status == 200, answer.body
    assert (answer.body["email"], answer.body["role"]) == (olga.email, "operator")
    token = answer.body["token"]
    me = (await staff.call("GET", "/me", token=token)).body["member"]
    assert (me["id"], me["email"], me["scopes"]) == (olga.id, olga.email, None)
    assert set(me["may"]) == set(MATRIX) - {Action.STAFF_RESCUE}  # it needs the machine
    assert "no-store" in answer.headers["Cache-Control"]
    assert (await staff.call("POST", "/logout", token=token)).status == 200
    assert (await staff.call("GET", "/me", token=token)).code == "unauthorized"


async def test_a_code_counts_once_also_in_parallel(staff: StaffApi) -> None:
    olga = await staff.hire(Role.OPERATOR)
    code = code_at(olga, clock.seconds())
    tries = await asyncio.gather(*(staff.try_login(olga.email, code) for _ in range(4)))
    assert sorted(each.status for each in tries) == [200, 401, 401, 401]
    assert (await staff.try_login(olga.email, code)).code == "invalid_credentials"


async def test_a_sixth_guess_is_not_compared(staff: StaffApi) -> None:
    olga = await staff.hire(Role.OPERATOR, "olga")
    other = await staff.hire(Role.SUPPORT, "other")
    guesses = await asyncio.gather(
        *(staff.try_login(olga.email, f"00000{each % 10}") for each in range(20))
    )
    assert sorted({each.status for each in guesses}) == [401, 429]
    assert sum(each.status == 401 for each in guesses) == 5
    refused = await staff.try_login(olga.email, olga.factor.codes[0])
    assert (refused.status, refused.code) == (429, "too_many_attempts")
    assert int(refused.headers["Retry-After"]) > 60
    await staff.login(other)  # the account of another member is not concerned


async def test_guesses_count_for_all_daemons_and_after_a_restart(staff: StaffApi) -> None:
    olga = await staff.hire(Role.OPERATOR)
    for _ in range(5):
        assert (await staff.try_login(olga.email, "wrong")).status == 401
    await forget_throttle(staff)
    assert (await staff.try_login(olga.email, olga.factor.codes[0])).status == 429


async def forget_throttle(staff: StaffApi) -> None:
    """Forget the guesses in the memory of the process, as a restart does."""
    [login] = [each for each in staff.http.routes if each.path.endswith("/login")]
    login.handler.__self__._desk.logins._throttle._events.clear()


@pytest.mark.parametrize("wrong", ["email", "password", "code", "lock"])
async def test_each_wrong_proof_has_the_same_answer(staff: StaffApi, wrong: str) -> None:
    token = await staff.token(Role.OPERATOR, "olga")
    ada = await staff.hire(Role.SUPPORT, "ada")
    if wrong == "lock":
        path, why = f"/staff/{ada.id}/lock", {"reason": "left"}
        assert (await staff.call("POST", path, why, token=token)).status == 200
    answer = await staff.try_login(
        "nobody@staff.example.com" if wrong == "email" else ada.email,
        "aaaa-bbbb-cccc-dddd" if wrong == "code" else ada.factor.codes[0],
        "wrong password" if wrong == "password" else PASSWORD,
    )
    assert answer.status == 401
    assert answer.body["error"] == {
        "code": "invalid_credentials",
        "message": "The e-mail address, the password or the code is wrong.",
    }
    if wrong == "password":  # it has used up no code
        await staff.login(ada)


@pytest.mark.parametrize("act", ["lock", "role", "reset-factor"])
async def test_a_lock_a_role_and_a_new_factor_end_logins_at_once(staff: StaffApi, act: str) -> None:
    token = await staff.token(Role.OPERATOR, "olga")
    ada = await staff.hire(Role.FINANCE, "ada")
    other = await staff.login(ada)
    assert (await staff.call("GET", "/me", token=other)).status == 200
    body = {"reason": "left", **({"role": "support"} if act == "role" else {})}
    answer = await staff.call("POST", f"/staff/{ada.email}/{act}", body, token=token)
    assert answer.status == 200, answer.body
    assert (await staff.call("GET", "/me", token=other)).code == "unauthorized"
    assert (await staff.call("GET", "/me", token=token)).status == 200


async def test_a_new_password_ends_the_other_logins(staff: StaffApi) -> None:
    ada = await staff.hire(Role.SUPPORT, "ada")
    first, second = await staff.login(ada, 0), await staff.login(ada, 1)
    body = {"old_password": PASSWORD, "new_password": "another password"}
    wrong = await staff.call("POST", "/password", {**body, "code": "000000"}, token=first)
    assert wrong.code == "invalid_credentials"
    code = ada.factor.codes[2]
    right = await staff.call("POST", "/password", {**body, "code": code}, token=first)
    assert right.status == 200, right.body
    assert (await staff.call("GET", "/me", token=first)).status == 200
    assert (await staff.call("GET", "/me", token=second)).status == 401
    assert (await staff.try_login(ada.email, ada.factor.codes[3])).status == 401
    again = await staff.try_login(ada.email, ada.factor.codes[3], "another password")
    assert again.status == 200


async def test_tokens_of_customers_and_of_the_staff_are_kept_apart(staff: StaffApi) -> None:
    token, person = await staff.token(Role.OPERATOR), await staff.service.person()
    assert (await staff.call("GET", "/me", token=person.token)).code == "unauthorized"
    assert (await staff.service.call("GET", "/auth/me", token=token)).code == "unauthorized"
    assert (await staff.service.call("GET", "/auth/me", token=person.token)).status == 200


async def test_attempts_are_listed_without_secrets(staff: StaffApi) -> None:
    olga = await staff.hire(Role.OPERATOR, "olga")
    await staff.try_login("my secret password", "123456", "swordfish")
    await staff.try_login(olga.email, "123456", "swordfish")
    token = await staff.login(olga)
    answer = await staff.call("GET", "/attempts?limit=2", token=token)
    right, wrong = answer.body["attempts"]
    assert (right["email"], right["network"], right["via"]) == (olga.email, "127.0.0.1", "api")
    assert right["right_at"] is not None
    assert wrong["right_at"] is None
    rest = await staff.call("GET", f"/attempts?cursor={answer.body['next_cursor']}", token=token)
    [unknown] = rest.body["attempts"]
    assert (unknown["email"], rest.body["next_cursor"]) == (None, None)

    async def read(tx: Transaction) -> str:
        tables = ("staff_attempts", "staff_logins", "staff_log", "texts", "staff_keys")
        rows = [await tx.all(lambda *row: row, f"SELECT * FROM {table}") for table in tables]
        return repr(rows)

    stored = await staff.service.daemon.store.read(read)
    assert not [each for each in ("secret", "swordfish", token) if each in stored]


async def test_a_page_has_the_login_in_a_cookie_only(staff: StaffApi) -> None:
    olga = await staff.hire(Role.OPERATOR)
    proof = {"email": olga.email, "password": PASSWORD, "code": olga.factor.codes[0]}
    page = {"X-Requested-By": "console", "Sec-Fetch-Site": "same-origin"}
    answer = await staff.call("POST", "/login", proof, headers=page)
    assert answer.body["token"] is None
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith("proxyd-staff=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    kept = {"Cookie": cookie.partition(";")[0]}
    assert (await staff.call("GET", "/me", headers={**kept, **page})).status == 200
    for forged in ({}, {"X-Requested-By": "console", "Sec-Fetch-Site": "same-site"}):
        assert (await staff.call("GET", "/me", headers={**kept, **forged})).status == 401
    done = await staff.call("POST", "/logout", headers={**kept, **page})
    assert "Max-Age=0" in done.headers["Set-Cookie"]
    assert (await staff.call("GET", "/me", headers={**kept, **page})).status == 401


@cases("token", ["", "x", "pxs_", "pxs_" + "a" * 43, "pxs_\N{SNOWMAN}", "a.b.c", "x" * 5_000])
async def test_garbage_is_no_token(staff: StaffApi, token: str) -> None:
    answer = await staff.call("GET", "/me", token=token)
    assert (answer.status, answer.code) == (401, "unauthorized")


@pytest.mark.parametrize(
    "field", [{"code": "1" * 65}, {"password": "x" * 129}, {"email": "x" * 255}, {"more": 1}]
)
async def test_an_oversized_or_unknown_field_is_refused(
    staff: StaffApi, field: dict[str, object]
) -> None:
    body = {"email": "olga@example.com", "password": "x", "code": "1", **field}
    answer = await staff.call("POST", "/login", body)
    assert (answer.status, answer.field) == (400, next(iter(field)))
