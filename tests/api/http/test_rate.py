"""Bucket per caller, filled at a steady rate, in bounded memory, and the headers for a client."""

from pathlib import Path

import pytest
from support.daemons.bounded import api_bounds
from support.daemons.service import running_in

from api.http.limits import ApiLimits
from api.http.rate import RateLimit, Rates

# A client that insists waits for an instant here; test_connections is about that.
QUICK_REFUSALS = api_bounds(insistence_seconds=0.001)


class Seconds:
    """A steady clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_twice_the_rate_at_once_and_then_the_rate() -> None:
    clock = Seconds()
    made = RateLimit(10, clock)
    assert [made.allows("a") for _ in range(25)] == [True] * 20 + [False] * 5
    assert made.allows("b")
    clock.now += 0.5
    assert [made.allows("a") for _ in range(7)] == [True] * 5 + [False] * 2
    clock.now += 3600
    assert [made.allows("a") for _ in range(21)] == [True] * 20 + [False]


def test_a_large_request_takes_several_tokens_and_no_more_than_there_can_be() -> None:
    clock = Seconds()
    made = RateLimit(10, clock)
    assert [made.allows("a", 6) for _ in range(4)] == [True, True, True, False]
    assert [made.allows("a") for _ in range(3)] == [True, True, False]
    clock.now += 1
    assert not made.allows("a", 100)
    clock.now += 1
    assert made.allows("a", 100)
    assert not made.allows("a")


def test_no_limit_is_no_limit() -> None:
    made = RateLimit(0, Seconds())
    assert all(made.allows("a") for _ in range(10_000))


def test_an_owner_of_many_ipv6_networks_has_a_share_of_the_rate_and_no_multiple() -> None:
    clock = Seconds()
    made = RateLimit(10, clock)
    site = [f"2001:db8:1:{subnet:x}::/64" for subnet in range(0, 65_536, 64)]
    assert sum(made.allows(network) for network in site * 2) == 20 * 16
    assert made.allows("2001:db8:2::/64")
    clock.now += 1
    assert sum(made.allows(network) for network in site) == 10 * 16


def test_the_number_of_callers_is_bounded() -> None:
    made = RateLimit(1, Seconds(), callers_max=2)
    for caller in "abc":
        assert [made.allows(caller) for _ in range(3)] == [True, True, False]
    assert made.allows("a")
    assert not made.allows("c")


@pytest.mark.usefixtures("no_time_for_rates")
async def test_callers_are_told_apart_and_health_always_answers(tmp_path: Path) -> None:
    async with running_in(
        tmp_path, bounds=QUICK_REFUSALS, limits={"requests_per_second": 5}
    ) as service:
        one, two = await service.person(), await service.person()
        answers = [await service.call("GET", "/auth/me", token=one.token) for _ in range(60)]
        assert {answer.status for answer in answers} == {200, 429}
        refused = next(answer for answer in answers if answer.status == 429)
        assert refused.code == "too_many_requests"
        assert refused.headers["Retry-After"] == "1"
        assert (await service.call("GET", "/auth/me", token=two.token)).status == 200
        wrong = [await service.call("GET", "/auth/me", token="wrong") for _ in range(60)]
        assert {answer.status for answer in wrong} == {401, 429}
        assert (await service.call("GET", "/healthz")).status == 200


@pytest.mark.usefixtures("no_time_for_rates")
async def test_workers_are_told_apart_by_device(tmp_path: Path) -> None:
    async with running_in(
        tmp_path, bounds=QUICK_REFUSALS, limits={"requests_per_second": 5}
    ) as service:
        owner = await service.person()
        tokens = []
        for _ in range(2):
            path = "/api/worker/token/create"
            made = await service.call("POST", path, {"name": "rig"}, token=owner.token)
            tokens.append({"X-Worker-Token": made.body["token"]})
        one, two = tokens
        beats = [
            await service.call("POST", "/api/worker/heartbeat", headers=one) for _ in range(60)
        ]
        assert {answer.status for answer in beats} == {200, 429}
        assert (await service.call("POST", "/api/worker/heartbeat", headers=two)).status == 200
        assert (await service.call("GET", "/auth/me", token=owner.token)).status == 200


@pytest.mark.usefixtures("no_time_for_rates")
async def test_all_logins_and_devices_of_a_user_have_one_rate_together(tmp_path: Path) -> None:
    limits = {"requests_per_second": 8, "requests_per_second_of_user": 9}
    async with running_in(tmp_path, bounds=QUICK_REFUSALS, limits=limits) as service:
        person, other = await service.person(), await service.person()
        login = {"email": person.email, "password": "long enough"}
        answers = [await service.call("POST", "/auth/login", login) for _ in range(4)]
        tokens = [answer.body["token"] for answer in answers]
        path = "/api/worker/token/create"
        made = await service.call("POST", path, {"name": "rig"}, token=person.token)
        device = {"X-Worker-Token": made.body["token"]}
        asked = []
        for _ in range(10):
            asked += [await service.call("GET", "/auth/me", token=token) for token in tokens]
            asked.append(await service.call("POST", "/api/worker/offline", headers=device))
        assert {answer.status for answer in asked} == {200, 429}
        assert (await service.call("GET", "/auth/me", token=other.token)).status == 200


@pytest.mark.usefixtures("no_time_for_rates")
async def test_pages_and_wrong_turns_are_counted(tmp_path: Path) -> None:
    for path in ("/docs", "/openapi.json", "/nowhere", "/metrics"):
        folder = tmp_path / path.strip("/")
        folder.mkdir()
        async with running_in(
            folder, bounds=QUICK_REFUSALS, limits={"requests_per_second": 5}
        ) as service:
            statuses = []
            for _ in range(20):
                async with service.http.get(service.url + path) as answer:
                    statuses.append(answer.status)
                    await answer.read()
            assert 429 in statuses, path
            assert statuses[0] in (200, 404)
            assert (await service.call("GET", "/healthz")).status == 200


@pytest.mark.usefixtures("no_time_for_rates")
async def test_health_has_a_rate_of_its_own_and_a_generous_one(tmp_path: Path) -> None:
    async with running_in(
        tmp_path, bounds=QUICK_REFUSALS, limits={"requests_per_second": 5}
    ) as service:
        statuses = [(await service.call("GET", "/healthz")).status for _ in range(200)]
        assert statuses[:40] == [200] * 40
        assert 429 in statuses
        assert (await service.call("GET", "/nowhere")).status == 404


def test_a_caller_without_an_address_has_a_rate() -> None:
    """A connection that was reset before it was accepted has no address any more."""
    rates = Rates(ApiLimits(requests_per_second=1), lambda: 0.0)
    assert [rates.exceeds("") for _ in range(3)] == [None, None, ""]


@pytest.mark.usefixtures("no_time_for_rates")
async def test_a_long_list_counts_as_several_requests(tmp_path: Path) -> None:
    async with running_in(
        tmp_path, bounds=QUICK_REFUSALS, limits={"requests_per_second": 20}
    ) as service:

        async def statuses(path: str, times: int) -> list[int]:
            person = await service.person()
            answers = [await service.call("GET", path, token=person.token) for _ in range(times)]
            return [answer.status for answer in answers]

        burst = 40
        for path, requests in (
            ("/api/jobs?limit=1000", 10),
            ("/api/events?limit=101", 2),
            ("/api/usage", 5),
            ("/api/jobs?limit=100", 1),
            ("/auth/me", 1),
        ):
            fitting = burst // requests
            assert await statuses(path, fitting + 1) == [200] * fitting + [429], path
        # Without a login the rate of the network counts.
        assert [
            (await service.call("GET", "/api/marketplace/jobs?limit=1000")).status for _ in range(5)
        ].count(429) > 0
