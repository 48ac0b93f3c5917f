"""The routes of the end of an account: export and closing, over a socket."""

from support.daemons.service import Service

PASSWORD = "long enough"  # of every person of `Service.person`


async def test_an_export_is_downloaded_with_the_login_only(service: Service) -> None:
    person, other = await service.person(), await service.person()
    asked = await service.call("POST", "/auth/me/export", token=person.token)
    assert asked.status == 200, asked.body
    path = f"/auth/me/export/{asked.body['id']}"
    assert (await service.call("GET", path)).status == 401
    strange = await service.call("GET", path, token=other.token)
    assert (strange.status, strange.code) == (404, "export_not_found")
    again = await service.call("POST", "/auth/me/export", token=person.token)
    assert (again.status, again.code) == (429, "too_many_attempts")
    wrong = await service.call("GET", "/auth/me/export/..%2f..%2fx", token=person.token)
    assert wrong.status == 404


async def test_an_export_is_a_file_as_the_document_says(service: Service) -> None:
    person = await service.person()
    asked = await service.call("POST", "/auth/me/export", token=person.token)
    url = f"{service.url}/auth/me/export/{asked.body['id']}"
    headers = {"Authorization": f"Bearer {person.token}"}
    document = service.daemon.http.openapi["paths"]["/auth/me/export/{export_id}"]["get"]
    tags = []
    for sent, status in (({}, 200), ({"Range": "bytes=4-7"}, 206)):
        async with service.http.get(url, headers=headers | sent) as response:
            body = await response.read()
            assert response.status == status, body
            assert list(document["responses"][str(status)]["content"]) == [response.content_type]
            tags.append(response.headers["ETag"])
    assert len(body) == 4
    # It is made again for each request, so a range with the former ETag gets the whole new file.
    assert tags[0] != tags[1]
    async with service.http.get(
        url, headers=headers | {"Range": "bytes=4-7", "If-Range": tags[0]}
    ) as response:
        assert (response.status, (await response.read())[:2]) == (200, b"PK")


async def test_a_closed_account_is_opened_by_a_login(service: Service) -> None:
    person = await service.person(usd="1")
    close = {"password": "no", "waive_balance": True}
    wrong = await service.call("POST", "/auth/me/close", close, token=person.token)
    assert (wrong.status, wrong.code, wrong.field) == (400, "wrong_password", "password")
    close = {"password": PASSWORD}
    full = await service.call("POST", "/auth/me/close", close, token=person.token)
    assert (full.status, full.code) == (400, "account_not_empty")
    assert "1.00 USD" in full.body["error"]["message"]
    close["waive_balance"] = True
    closed = await service.call("POST", "/auth/me/close", close, token=person.token)
    assert closed.status == 200, closed.body
    assert (await service.call("GET", "/auth/me", token=person.token)).status == 401
    login = {"email": person.email, "password": PASSWORD}
    again = await service.call("POST", "/auth/login", login)
    assert (again.status, again.body["reopened"]) == (200, True)
    assert "reopened" not in (await service.call("POST", "/auth/login", login)).body
    me = await service.call("GET", "/auth/me", token=again.body["token"])
    assert me.body["usd_balance"] == 1.0
