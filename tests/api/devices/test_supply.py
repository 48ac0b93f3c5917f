"""GET /api/market/supply: the devices that ask for work, for everybody."""

from support.clients.story import worker_token
from support.daemons.service import Service


async def test_every_caller_sees_the_supply(service: Service) -> None:
    empty = await service.call("GET", "/api/market/supply")
    assert (empty.status, empty.body["total"]) == (200, {"devices": 0, "free": 0})
    assert empty.body["gpus"] == []


async def test_devices_that_ask_for_work_are_counted(service: Service) -> None:
    for slots in (1, 0, 1):
        owner = await service.person()
        worker = {"X-Worker-Token": await worker_token(service, owner)}
        body = {
            "capacity": {"slots": slots, "cores": 8, "ram_gb": 32, "gpus": 1, "vram_gb": 24},
            "capabilities": {
                "executors": ["bwrap", "podman"],
                "job_types": ["script"],
                "gpus": [{"name": "NVIDIA GeForce RTX 4090"}],
                "network": "egress",
            },
            "min_price_usd": 0.25,
        }
        answer = await service.call("POST", "/api/worker/next", body, headers=worker)
        assert answer.status == 200, answer.body
    found = (await service.call("GET", "/api/market/supply")).body
    shown = {"devices": 3, "free": 2}  # none of the owners is proven
    assert found["total"] == found["network"] == shown
    gpu = {"gpu": "NVIDIA GeForce RTX 4090", "gpus": 3, "free_gpus": 2, "vram_gb": 24.0}
    assert found["gpus"] == [{**shown, **gpu}]
    assert found["cores"] == [{**shown, "least": 8}]
    assert found["memory_gb"] == [{**shown, "least": 32}]
    assert [row["sandbox"] for row in found["sandboxes"]] == ["bwrap", "podman"]
    assert found["countries"] == [{"country": "other", "devices": 3, "free": 2}]
    assert "prices" not in found
