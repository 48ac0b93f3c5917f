"""No identifier in a path, however odd, is a failure of the server: PostgreSQL takes no NUL."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from support.clients.staff import staffed
from yarl import URL

from market.staff.base.roles import Role

ODD = ("a\x00b", "x" * 2_000)


def requests(document: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the method, the path and a body of each operation on something with a name."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items() if "{" in path else ():
            content = operation.get("requestBody", {}).get("content", {})
            yield method.upper(), path, content.get("application/json", {}).get("example")


def named(path: str, name: str) -> str:
    """Return a path in which everything has this name."""
    return "/".join(quote(name) if part.startswith("{") else part for part in path.split("/"))


@pytest.mark.parametrize("engine", ["postgres"])
async def test_an_odd_identifier_is_refused(store_url: str, tmp_path: Path) -> None:
    async with staffed(tmp_path, store_url) as staff:
        service, failed, count = staff.service, [], 0
        member, user = await staff.token(Role.OPERATOR), (await service.person()).token
        for base, document, token in (
            (staff.url, "/staff/openapi.json", member),
            (service.url, "/openapi.json", user),
        ):
            headers = {"Authorization": f"Bearer {token}"}
            async with service.http.get(base + document, headers=headers) as answer:
                operations = list(requests(msgspec.json.decode(await answer.read())))
            count += len(operations)
            for method, path, body in operations:
                for name in ODD:
                    url = URL(base + named(path, name), encoded=True)
                    asked = service.http.request(method, url, json=body, headers=headers)
                    async with asked as answer:
                        if answer.status >= 500:
                            failed.append((method, path, name[:5], answer.status))
        assert count > 100
        assert not failed
