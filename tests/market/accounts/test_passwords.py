"""Passwords of people: argon2id, off the loop, a bounded number at a time."""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import VerifyMismatchError
from support.base.waiting import until

from market.accounts.passwords import WAITING_MAX, WAITING_MAX_PER_CLIENT, Passwords
from market.base.errors import Code, MarketError

TIME_COST = 1
MEMORY_KIB = 64


@pytest.fixture
def passwords() -> Iterator[Passwords]:
    """A hasher that costs next to nothing."""
    made = Passwords(time_cost=TIME_COST, memory_kib=MEMORY_KIB)
    yield made
    made.close()


async def test_a_password_belongs_to_its_hash(passwords: Passwords) -> None:
    encoded = await passwords.hash("correct horse")
    assert await passwords.verify("correct horse", encoded)


@pytest.mark.parametrize(
    "wrong", ["", "correct hors", "correct horse ", "Correct horse", "correct horse\x00"]
)
async def test_no_other_password_does(wrong: str, passwords: Passwords) -> None:
    assert not await passwords.verify(wrong, await passwords.hash("correct horse"))


@pytest.mark.parametrize("password", ["", "ü" * 128, "\x00", "密码" * 30, "🐴" * 128, "p" * 1024])
async def test_any_text_is_a_password(password: str, passwords: Passwords) -> None:
    encoded = await passwords.hash(password)
    assert await passwords.verify(password, encoded)
    assert not await passwords.verify(password + "x", encoded)


async def test_a_hash_names_argon2id_and_its_cost(passwords: Passwords) -> None:
    encoded = await passwords.hash("correct horse")
    assert re.match(r"\$argon2id\$v=19\$m=64,t=1,p=1\$", encoded)
    assert "correct horse" not in encoded


async def test_two_hashes_of_one_password_differ(passwords: Passwords) -> None:
    one, other = await passwords.hash("correct horse"), await passwords.hash("correct horse")
    assert one != other


async def test_a_hash_that_cost_more_still_verifies(passwords: Passwords) -> None:
    dearer = Passwords(time_cost=2, memory_kib=128)
    encoded = await dearer.hash("correct horse")
    dearer.close()
    assert await passwords.verify("correct horse", encoded)


@pytest.mark.parametrize(
    "encoded", ["", "x", "$argon2id$", "$argon2id$v=19$m=64,t=1,p=1$c2FsdA$", "correct horse"]
)
async def test_no_password_belongs_to_a_text_that_is_no_hash(
    encoded: str, passwords: Passwords
) -> None:
    assert not await passwords.verify("correct horse", encoded)


async def test_no_password_belongs_to_an_unknown_user(passwords: Passwords) -> None:
    assert not await passwords.verify("correct horse", None)
    assert not await passwords.verify("a password that nobody has", None)
    assert not await passwords.verify("", None)


async def test_an_unknown_user_costs_the_work_of_a_known_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[str] = []
    verify = PasswordHasher.verify

    def counted(self: PasswordHasher, encoded: str, password: str) -> bool:
        computed.append(encoded)
        return verify(self, encoded, password)

    monkeypatch.setattr(PasswordHasher, "verify", counted)
    with closing(Passwords(time_cost=2, memory_kib=128)) as passwords:
        somebody = await passwords.hash("correct horse")
        await passwords.verify("wrong horse", somebody)
        await passwords.verify("wrong horse", None)
    assert len(computed) == 2
    assert extract_parameters(computed[0]) == extract_parameters(computed[1])


async def test_the_decoy_for_unknown_users_is_a_complete_hash() -> None:
    """argon2 reports a mismatch after the whole computation, and not an invalid hash."""
    with closing(Passwords(time_cost=TIME_COST, memory_kib=MEMORY_KIB)) as passwords:
        with pytest.raises(VerifyMismatchError):
            PasswordHasher().verify(passwords._decoy, "correct horse")


async def test_making_the_hasher_hashes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def hashed(self: PasswordHasher, password: str) -> str:
        raise AssertionError("hashed")

    monkeypatch.setattr(PasswordHasher, "hash", hashed)
    with closing(Passwords(time_cost=TIME_COST, memory_kib=MEMORY_KIB)) as passwords:
        assert not await passwords.verify("correct horse", None)


async def test_hashing_leaves_the_loop_free(
    passwords: Passwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[int] = set()
    matches = Passwords._matches

    def noted(self: Passwords, password: str, encoded: str) -> bool:
        used.add(threading.get_ident())
        return matches(self, password, encoded)

    monkeypatch.setattr(Passwords, "_matches", noted)
    encoded = await passwords.hash("correct horse")
    await asyncio.gather(*(passwords.verify("correct horse", encoded) for _ in range(20)))
    assert threading.get_ident() not in used
    assert len(used) == 1


async def test_one_more_than_may_wait_is_refused_and_the_others_are_served(
    passwords: Passwords,
) -> None:
    outcomes = await asyncio.gather(
        *(passwords.hash("correct horse") for _ in range(WAITING_MAX + 1)), return_exceptions=True
    )
    *served, refused = outcomes
    assert all(isinstance(outcome, str) for outcome in served)
    assert isinstance(refused, MarketError)
    assert refused.code is Code.TOO_BUSY


async def test_one_client_has_only_a_part_of_the_room(passwords: Passwords) -> None:
    crowd = [
        asyncio.create_task(passwords.hash("x", client="192.0.2.1"))
        for _ in range(WAITING_MAX_PER_CLIENT + 1)
    ]
    await asyncio.sleep(0)
    other = asyncio.create_task(passwords.verify("x", None, client="192.0.2.2"))
    *served, refused = await asyncio.gather(*crowd, return_exceptions=True)
    assert all(isinstance(outcome, str) for outcome in served)
    assert isinstance(refused, MarketError)
    assert refused.code is Code.TOO_BUSY
    assert not await other
    assert await passwords.hash("x", client="192.0.2.1")


async def test_there_is_room_again_when_the_crowd_is_gone(passwords: Passwords) -> None:
    for _ in range(2):
        crowd = [asyncio.create_task(passwords.hash("x")) for _ in range(WAITING_MAX)]
        await asyncio.gather(*crowd)
    encoded = await passwords.hash("correct horse")
    assert await passwords.verify("correct horse", encoded)


async def test_a_caller_that_gives_up_leaves_room(passwords: Passwords) -> None:
    crowd = [asyncio.create_task(passwords.hash("x")) for _ in range(WAITING_MAX)]
    await asyncio.sleep(0)
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    assert await passwords.hash("correct horse")


async def test_after_closing_nothing_is_hashed() -> None:
    passwords = Passwords(time_cost=TIME_COST, memory_kib=MEMORY_KIB)
    passwords.close()
    with pytest.raises(RuntimeError):
        await passwords.hash("correct horse")


async def test_a_whole_ipv6_site_leaves_room_for_others(passwords: Passwords) -> None:
    crowd = [
        asyncio.create_task(passwords.hash("x", client=f"2001:db8:1:{subnet % 256:x}00::/64"))
        for subnet in range(WAITING_MAX)
    ]
    await asyncio.sleep(0)
    other = asyncio.create_task(passwords.hash("x", client="2001:db8:2:1::/64"))
    outcomes = await asyncio.gather(*crowd, return_exceptions=True)
    served = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert len(served) == 16 * WAITING_MAX_PER_CLIENT
    assert await other


@pytest.mark.parametrize(
    "clients", [["192.0.2.1"] * 6, [f"2001:db8:1:{subnet:x}00::/64" for subnet in range(6)]]
)
async def test_a_guessing_network_delays_another_client_by_one_hash(
    passwords: Passwords, monkeypatch: pytest.MonkeyPatch, clients: list[str]
) -> None:
    may_go = threading.Event()
    order: list[str] = []
    matches = Passwords._matches

    def noted(self: Passwords, password: str, encoded: str) -> bool:
        order.append(password)
        assert may_go.wait(20)
        return matches(self, password, encoded)

    encoded = await passwords.hash("right")
    monkeypatch.setattr(Passwords, "_matches", noted)
    guesses = [
        asyncio.create_task(passwords.verify("guess", encoded, client=client)) for client in clients
    ]
    await until(lambda: order == ["guess"])
    other = asyncio.create_task(passwords.verify("right", encoded, client="192.0.2.2"))
    await asyncio.sleep(0)
    may_go.set()
    assert await other
    assert not any(await asyncio.gather(*guesses))
    # The guess that waited first has its turn before a client that came later.
    assert order == ["guess", "guess", "right"] + ["guess"] * 4
