"""An owner's view of a device: its activity, why it gets no work, its jobs, its earnings."""

from typing import Any

from support.base.waiting import until
from support.daemons.service import Answer, Person, Service

CAPACITY = {"slots": 1, "cores": 4, "ram_gb": 8, "disk_gb": 50}
CAPABILITIES = {"executors": ["bwrap"], "job_types": ["script", "docker"], "arch": "x86_64"}
JOB = {
    "title": "hello",
    "job_type": "script",
    "price_credit": 10,
    "duration_hrs": 2,
    "payload": {"script": "print('hello')"},
}
NOBODY = "01900000-0000-7000-8000-000000000000"


class Rig:
    """A device of a new owner, and the answers to both."""

    def __init__(self, service: Service, owner: Person, made: dict[str, Any]) -> None:
        self._service = service
        self.owner = owner
        self.id = str(made["token_id"])
        self._headers = {"X-Worker-Token": str(made["token"])}

    async def say(self, path: str, body: Any = None) -> dict[str, Any]:
        answer = await self._service.call("POST", path, body, headers=self._headers)
        assert answer.status == 200, answer.body
        return dict(answer.body)

    async def ask(self, **changes: Any) -> dict[str, Any]:
        """Ask for work; returns the answer."""
        body = {"capacity": CAPACITY, "capabilities": CAPABILITIES, **changes}
        return await self.say("/api/worker/next", body)

    async def shown(self, path: str = "") -> dict[str, Any]:
        url = f"/api/worker/devices/{self.id}{path}"
        answer = await self._service.call("GET", url, token=self.owner.token)
        assert answer.status == 200, answer.body
        return dict(answer.body)

    async def device(self) -> dict[str, Any]:
        return dict((await self.shown())["device"])

    async def work(self) -> str:
        """Return the device's activity, on which its page and the list agree."""
        [listed] = (
            await self._service.call("GET", "/api/worker/devices", token=self.owner.token)
        ).body["devices"]
        word = (await self.device())["work"]
        assert listed["work"] == word
        return str(word)


async def rig(service: Service, **fields: Any) -> Rig:
    owner = await service.person()
    made = await service.call(
        "POST", "/api/worker/token/create", {"name": "rig", **fields}, token=owner.token
    )
    return Rig(service, owner, made.body)


async def post(service: Service, buyer: Person, **changes: Any) -> str:
    made = await service.call("POST", "/api/jobs", {**JOB, **changes}, token=buyer.token)
    assert made.status == 200, made.body
    return str(made.body["job_id"])


async def waiting(service: Service, jobs: int) -> None:
    book = service.daemon.market.dispatch.jobs
    await until(lambda: len(book) == jobs, f"{jobs} jobs wait in memory")


async def test_the_activity_of_a_device_follows_it_from_its_token_to_its_end(
    service: Service,
) -> None:
    device, buyer = await rig(service), await service.person(credit="100")
    assert await device.work() == "never_seen"
    await device.say("/api/worker/heartbeat")
    assert await device.work() == "not_asking"
    await device.ask(capacity={"slots": 0})
    assert await device.work() == "wants_none"
    await device.ask()
    assert await device.work() == "waiting"
    await post(service, buyer)
    await waiting(service, 1)
    [job] = (await device.ask())["jobs"]
    assert await device.work() == "working"
    assert (await device.device())["running"] == 1
    await device.say("/api/worker/offline")
    assert await device.work() == "offline"
    assert "offline_at" in await device.device()
    body = {"token_id": device.id}
    await service.call("POST", "/api/worker/token/revoke", body, token=device.owner.token)
    assert await device.work() == "revoked"
    assert job["title"] == "hello"


async def test_an_owner_sees_the_reason_that_keeps_each_job_from_a_device(service: Service) -> None:
    device, buyer = await rig(service, min_price_usd=0.5), await service.person(credit="1000")
    await device.say("/api/worker/heartbeat", {"cpu_cores": 8, "cpu_temp": 61.5, "ram_pct": 12})
    before = (await device.device())["suitability"]
    assert before == {"waiting": 0, "suitable": 0, "hindrances": [], "is_reported": True}
    await device.ask()
    await post(service, buyer)  # for 5 credits an hour
    await post(service, buyer, resources={"cores": 64}, price_credit=200)
    await post(service, buyer, resources={"cores": 32}, price_credit=200)
    await waiting(service, 3)
    seen = await device.device()
    assert seen["suitability"] == {
        "waiting": 3,
        "suitable": 0,
        "hindrances": [{"reason": "cores", "jobs": 2}, {"reason": "price", "jobs": 1}],
        "is_reported": False,
        "best_price_usd": 0.05,
    }
    assert (seen["cpu_temp"], seen["ram_pct"], seen["min_price_usd"]) == (61.5, 12, 0.5)
    assert "gpu_temp" not in seen
    offer = seen["offer"]
    assert (offer["slots"], offer["cores"], offer["min_price_usd"]) == (1, 4, 0.5)
    await post(service, buyer, price_credit=200)
    await waiting(service, 4)
    assert (await device.device())["suitability"]["suitable"] == 1
    await device.ask(capacity={**CAPACITY, "slots": 0})  # it rests: jobs are no less for it
    seen = await device.device()
    assert (seen["work"], seen["suitability"]["suitable"]) == ("wants_none", 1)


async def test_an_owner_sees_the_jobs_and_the_earnings_of_a_device(service: Service) -> None:
    device, buyer = await rig(service), await service.person(credit="100")
    assert (await device.shown("/jobs"))["jobs"] == []
    assert (await device.shown("/earnings"))["earnings"] == []
    no_review = {"trust": {"review_hours": 0}}
    done, lost = await post(service, buyer, **no_review), await post(service, buyer)
    await waiting(service, 2)
    await device.say("/api/worker/heartbeat")
    await device.say(f"/api/jobs/{done}/accept")
    await device.say(f"/api/worker/jobs/{done}/started")
    [running] = (await device.shown("/jobs"))["jobs"]
    assert (running["id"], running["earned"], "outcome" in running) == (done, 0, False)
    await device.say(f"/api/worker/jobs/{done}/complete", {"result": "42"})
    await device.say(f"/api/jobs/{lost}/accept")
    await device.say(f"/api/worker/jobs/{lost}/fail", {"reason": "too hot", "kind": "host"})
    newest, oldest = (await device.shown("/jobs"))["jobs"]
    assert (newest["id"], newest["outcome"], newest["kind"]) == (lost, "lost", "host")
    assert (newest["reason"], newest["earned"]) == ("too hot", 0)
    assert (oldest["id"], oldest["outcome"], oldest["earned"]) == (done, "completed", 9)
    [day] = (await device.shown("/earnings?days=1"))["earnings"]
    assert (day["earned"], day["earned_usd"], day["bytes"]) == (9, 0, 0)
    part = await device.shown("/jobs?limit=1")
    assert [job["id"] for job in part["jobs"]] == [lost]
    rest = await device.shown(f"/jobs?limit=1&cursor={part['next_cursor']}")
    assert [job["id"] for job in rest["jobs"]] == [done]


async def test_a_job_that_came_back_to_a_device_is_one_job_of_it(service: Service) -> None:
    device, buyer = await rig(service), await service.person(credit="100")
    job_id = await post(service, buyer)
    await device.say(f"/api/jobs/{job_id}/accept")
    await device.say(f"/api/worker/jobs/{job_id}/fail", {"reason": "too hot", "kind": "host"})
    await device.say(f"/api/jobs/{job_id}/accept")
    [only] = (await device.shown("/jobs"))["jobs"]
    assert (only["id"], only["attempt"], "outcome" in only) == (job_id, 2, False)


async def test_the_devices_of_others_are_not_there(service: Service) -> None:
    device, stranger = await rig(service), await service.person()
    for path in ("", "/jobs", "/earnings"):
        for device_id in (device.id, NOBODY, "x"):
            answer = await service.call(
                "GET", f"/api/worker/devices/{device_id}{path}", token=stranger.token
            )
            assert (answer.status, answer.code) == (404, "token_not_found")


async def test_the_cost_of_cancelling_can_be_asked_before(service: Service) -> None:
    device, buyer = await rig(service), await service.person(credit="100")
    job_id = await post(service, buyer)

    async def cost() -> Answer:
        return await service.call("GET", f"/api/jobs/{job_id}/cancel", token=buyer.token)

    free = {"ok": True, "jobs": 1, "pays": 0.0, "returns": 10.0, "payment_type": "credit"}
    assert (await cost()).body == free
    await device.say(f"/api/jobs/{job_id}/accept")
    assert (await cost()).body == free  # no work has begun
    await service.call("POST", f"/api/jobs/{job_id}/cancel", token=buyer.token)
    assert (await cost()).code == "job_over"
    stranger = await service.person()
    answer = await service.call("GET", f"/api/jobs/{job_id}/cancel", token=stranger.token)
    assert answer.code == "job_not_found"
