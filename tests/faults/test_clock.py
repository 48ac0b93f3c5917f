"""The wall clock jumps: sessions and logins end by it, waiting does not, nothing is paid twice."""

import time

import pytest
from support.base.waiting import until
from support.clients.socks import GREETING, Client, credentials, request, tunnel
from support.daemons.service import Service
from support.targets import targets

HOUR = 3_600
DAY = 24 * HOUR
BLOCK = bytes(10_000)


class WallClock:
    """The time of the daemon's clock, which a test can set, and the time that passes."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self) -> None:
        self.ahead = 0
        self.passed = 0

    def time_ns(self) -> int:
        return time.time_ns() + (self.ahead + self.passed) * 1_000_000_000

    def clock_gettime(self, which: int) -> float:
        return time.clock_gettime(which) + self.passed


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    """Have the daemon live by a clock of the test's."""
    made = WallClock()
    monkeypatch.setattr("proxyd.loop.clock.time", made)
    return made


async def exchange(client: Client) -> None:
    """Send bytes to an echo, and have them back."""
    await client.send(BLOCK)
    assert await client.receive(len(BLOCK)) == BLOCK


@pytest.mark.parametrize("jump", [HOUR, -HOUR, -400 * DAY])
async def test_a_jump_ends_nothing_that_is_not_over(
    wall: WallClock, service: Service, jump: int
) -> None:
    """Handshakes, dials and idle connections wait by a monotonic clock."""
    async with targets.echo() as target:
        person = await service.person(usd="10")
        bought = await service.buy(person)
        relaying = await tunnel(
            service.proxy_port, bought.username, bought.password, target.host, target.port
        )
        await exchange(relaying)
        half = await Client.open(service.proxy_port)
        await half.send(GREETING)
        assert await half.receive(2) == b"\x05\x02"
        wall.ahead = jump
        await exchange(relaying)
        await half.send(credentials(bought.username, bought.password))
        assert await half.receive(2) == b"\x01\x00"
        await half.send(request(target.host, target.port))
        assert (await half.reply())[0] == 0
        await exchange(half)
        later = await service.buy(person)
        newest = (await service.sessions(person))[0]
        assert (newest["id"], newest["status"]) == (later.id, "active")
        await relaying.close()
        await half.close()
        await until(lambda: service.daemon.gateway.connections == 0)
        before = await service.balance(person)
        await service.end(person, bought)
        used = 6 * len(BLOCK)
        assert (await service.session(person, bought))["bytes_used"] == used
        assert target.received + target.sent == used
        paid = used * 1_000_000 // 10**9 / 1_000_000
        assert await service.balance(person) == pytest.approx(before + 1 - paid, abs=1e-9)


async def test_a_session_that_a_jump_expires_is_paid_once(
    wall: WallClock, service: Service
) -> None:
    async with targets.echo() as target:
        person = await service.person(usd="10")
        bought = await service.buy(person)
        client = await tunnel(
            service.proxy_port, bought.username, bought.password, target.host, target.port
        )
        await exchange(client)
        wall.ahead = 31 * DAY
        assert (await service.call("GET", "/auth/me", token=person.token)).status == 401
        with pytest.raises(ConnectionResetError):
            await client.rest()
        await client.close()

        async def is_settled() -> bool:
            wall.ahead = 0
            return (await service.session(person, bought))["status"] == "expired"

        await until(is_settled, "it is settled")
        balance = await service.balance(person)
        assert balance == pytest.approx(10 - 2 * len(BLOCK) / 10**9)
        for jump in (-DAY, 31 * DAY, 0):
            wall.ahead = jump
            assert await service.daemon.market.bandwidth.expire() == 0
        await service.end(person, bought)
        assert await service.balance(person) == balance
        refused = await Client.open(service.proxy_port)
        assert await refused.log_in(bought.username, bought.password) == 3
        await refused.close()


async def test_a_clock_that_was_ahead_locks_no_user_out(wall: WallClock, service: Service) -> None:
    """Attempts counted at a time in the future would otherwise count for ever."""
    person = await service.person()
    wall.ahead = DAY
    wrong = {"email": person.email, "password": "not this one"}
    for _ in range(10):
        assert (await service.call("POST", "/auth/login", wrong)).status == 401
    assert (await service.call("POST", "/auth/login", wrong)).status == 429
    wall.ahead = 0
    right = {"email": person.email, "password": "long enough"}
    assert (await service.call("POST", "/auth/login", right)).status == 200


async def test_a_device_that_reported_in_the_future_is_not_online_for_ever(
    wall: WallClock, service: Service
) -> None:
    person = await service.person()
    made = await service.call(
        "POST", "/api/worker/token/create", {"name": "rig"}, token=person.token
    )
    worker = {"X-Worker-Token": made.body["token"]}

    async def is_online() -> bool:
        answer = await service.call("GET", "/api/worker/devices", token=person.token)
        return bool(answer.body["devices"][0]["is_online"])

    wall.ahead = HOUR
    assert (await service.call("POST", "/api/worker/heartbeat", headers=worker)).status == 200
    assert await is_online()
    wall.ahead = 0
    assert not await is_online()
    assert (await service.call("POST", "/api/worker/heartbeat", headers=worker)).status == 200
    assert await is_online()


async def test_a_jump_takes_no_job_from_a_device_that_lives(
    wall: WallClock, service: Service
) -> None:
    """Nor does a daemon that stood still; one that has vanished loses its job all the same."""
    person = await service.person(credit="20")

    async def rig() -> tuple[dict[str, str], str]:
        made = await service.call(
            "POST", "/api/worker/token/create", {"name": "rig"}, token=person.token
        )
        worker = {"X-Worker-Token": made.body["token"]}
        job = {"title": "t", "job_type": "script", "price_credit": 5, "duration_hrs": 1}
        put_up = await service.call("POST", "/api/jobs", job, token=person.token)
        job_id = put_up.body["job_id"]
        accepted = await service.call("POST", f"/api/jobs/{job_id}/accept", headers=worker)
        assert accepted.status == 200, accepted.body
        return worker, job_id

    async def status(job_id: str) -> str:
        answer = await service.call("GET", f"/api/jobs/{job_id}", token=person.token)
        return str(answer.body["job"]["status"])

    (living, kept), (_, lost) = await rig(), await rig()
    for jump in (HOUR, 5 * HOUR):
        wall.ahead += jump
        await service.daemon.core.work.take_back()
        wall.passed += HOUR
        await service.daemon.core.work.take_back()
        assert (await status(kept), await status(lost)) == ("running", "running")
    for _ in range(60):
        wall.passed += 15
        beat = await service.call("POST", "/api/worker/heartbeat", headers=living)
        assert beat.status == 200
        await service.daemon.core.work.take_back()
    assert (await status(kept), await status(lost)) == ("running", "waiting")
