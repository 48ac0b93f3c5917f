"""Users who earn by the work of their devices."""

from support.daemons.service import Person, Service


async def work(service: Service, worker: Person, credit: int) -> None:
    """Let a user's device earn credits, less the fee of a tenth."""
    buyer = await service.person(credit=str(credit))
    job = {"title": "x", "job_type": "script", "price_credit": credit, "duration_hrs": 1}
    job_id = (await service.call("POST", "/api/jobs", job, token=buyer.token)).body["job_id"]
    body = {"name": "rig"}
    token = await service.call("POST", "/api/worker/token/create", body, token=worker.token)
    device = {"X-Worker-Token": token.body["token"]}
    await service.call("POST", f"/api/jobs/{job_id}/accept", headers=device)
    await service.call("POST", f"/api/worker/jobs/{job_id}/complete", headers=device)
