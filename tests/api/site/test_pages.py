"""The public pages: texts in the reader's language and version, without scripts."""

from pathlib import Path

from support.daemons.service import Service, running_in

from market.site.texts import LANGUAGES_MAX, Version
from market.staff.base.roles import Machine
from market.staff.site import site
from market.staff.site.site import DAY_SECONDS, NOTICE_DAYS, Publication, TextKind


async def publish(
    service: Service, body: str, *, locale: str = "en", days: int = 0, version: int | None = None
) -> None:
    context = service.daemon.market.context
    at = context.now() + days * DAY_SECONDS
    new = Publication(TextKind.TERMS, locale, body, at, version)
    await site.publish(context, Machine("root"), new, "new terms")


async def read(service: Service, path: str, language: str = "en") -> tuple[int, str]:
    headers = {"Accept-Language": language}
    async with service.http.get(service.url + path, headers=headers) as answer:
        if answer.status == 200:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        return answer.status, await answer.text()


async def test_a_text_is_read_in_a_language_and_a_version(tmp_path: Path) -> None:
    async with running_in(tmp_path, site={"name": "Ada's <b>"}) as service:
        await publish(service, "# Be kind\n\n<script>")
        await publish(service, "# Kind sein", locale="de", version=1)
        await publish(service, "# Be kinder", days=NOTICE_DAYS + 1)
        status, page = await read(service, "/terms")
        assert status == 200
        assert "<h1>Be kind</h1>" in page
        assert "Ada&#x27;s &lt;b&gt;" in page
        assert "<script" not in page
        for language in ("de", "de-AT,en;q=0.5", "fr, de"):
            assert "Kind sein" in (await read(service, "/terms", language))[1]
        assert "Be kind" in (await read(service, "/terms", "fr"))[1]
        assert "Kind sein" in (await read(service, "/terms?lang=de"))[1]
        assert "Be kinder" in (await read(service, "/terms?version=2"))[1]
        facts = await service.call("GET", "/api/site")
        assert [(each["version"], each["is_valid"]) for each in facts.body["texts"]] == [
            (1, True),
            (2, False),
        ]
        assert facts.body["texts"][0]["locales"] == ["de", "en"]
        async with service.http.get(service.url + "/terms") as answer:
            assert answer.headers["Vary"] == "Accept-Encoding, Accept-Language"


async def test_a_text_that_is_not_published_is_not_there(tmp_path: Path) -> None:
    async with running_in(tmp_path) as service:
        for path in ("/terms", "/privacy", "/terms?version=9", "/terms?version=x"):
            assert (await read(service, path))[0] == 404


async def test_the_status_before_the_first_look_has_no_time(tmp_path: Path) -> None:
    async with running_in(tmp_path) as service:
        answer = await service.call("GET", "/status.json")
        assert answer.body["at"] is None
        assert {each["state"] for each in answer.body["components"]} == {"unknown"}
        _, page = await read(service, "/status")
        assert "Not seen yet." in page


async def test_a_client_agrees_by_the_api(tmp_path: Path) -> None:
    ada = {"username": "ada", "email": "ada@example.com", "password": "correct horse"}
    async with running_in(tmp_path) as service:
        await publish(service, "Be kind.")
        answer = await service.call("POST", "/auth/register", ada)
        assert (answer.status, answer.code, answer.field) == (401, "terms_not_accepted", "accepted")
        assert "terms 1" in answer.body["error"]["message"]
        accepted = {"accepted": {"terms": 1}}
        answer = await service.call("POST", "/auth/register", {**ada, **accepted})
        assert answer.status == 200
        answer = await service.call("POST", "/auth/login", ada)
        assert answer.status == 200


async def test_the_status_is_a_page_and_a_document(tmp_path: Path) -> None:
    async with running_in(tmp_path) as service:
        context = service.daemon.market.context
        await site.notify(
            context, Machine("root"), severity="warning", title="<b>", body="a\n<i>", why="planned"
        )
        await service.daemon.market.status.look({"api": "working", "proxy": "failing"})
        answer = await service.call("GET", "/status.json")
        found = {each["name"]: each["state"] for each in answer.body["components"]}
        assert (found["api"], found["proxy"], found["mail"]) == ("working", "failing", "unknown")
        assert answer.body["notices"][0]["title"] == "<b>"
        status, page = await read(service, "/status")
        assert status == 200
        assert "<h2>&lt;b&gt;</h2>" in page
        assert "a<br>&lt;i&gt;" in page
        assert "<td class=bad>failing</td>" in page


def test_a_long_list_of_languages_costs_little() -> None:
    version = Version("terms", 1, ("de", "en", "tr"), 0, is_valid=True)
    assert version.locale("x," * (LANGUAGES_MAX - 1) + "tr") == "tr"
    assert version.locale("x," * LANGUAGES_MAX + "tr") == "en"
