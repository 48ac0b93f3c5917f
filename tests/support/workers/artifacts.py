"""Files of jobs over HTTP: announced, sent and finished, by people and by devices."""

import hashlib
import io
from typing import Any

from support.daemons.service import Answer, Person, Service


def announced(content: bytes, name: str = "data.bin", **fields: Any) -> dict[str, Any]:
    """Return the announcement of a file."""
    digest = hashlib.sha256(content).hexdigest()
    return {"name": name, "size_bytes": len(content), "sha256": digest, **fields}


def as_person(person: Person) -> dict[str, str]:
    """Return the headers of a login."""
    return {"Authorization": f"Bearer {person.token}"}


def as_device(token: str) -> dict[str, str]:
    """Return the headers of a device."""
    return {"X-Worker-Token": token}


async def put(
    service: Service, path: str, data: Any, who: dict[str, str], offset: int | None = None
) -> Answer:
    """Send bytes of a file; `who` are the headers of the sender."""
    where = path if offset is None else f"{path}?offset={offset}"
    if isinstance(data, bytes):
        data = io.BytesIO(data)
    return await service.call("PUT", where, raw=data, headers={**who, "Content-Type": "x/y"})


async def upload(
    service: Service, who: dict[str, str], content: bytes, path: str = "/api/artifacts", **more: Any
) -> str:
    """Announce a file, send it, and finish the upload; return its identifier."""
    answer = await service.call("POST", path, announced(content, **more), headers=who)
    assert answer.status == 200, answer.body
    artifact_id = str(answer.body["artifact_id"])
    sent = await put(service, answer.body["upload"]["url"], content, who)
    assert (sent.status, sent.body["offset"]) == (200, len(content)), sent.body
    done_at = answer.body["upload"]["url"].replace("/content", "/done")
    done = await service.call("POST", done_at, {}, headers=who)
    assert (done.status, done.body["artifact"]["is_whole"]) == (200, True)
    return artifact_id
