"""The policy of the console's pages: the things that a browser refuses them, and their size."""

import re
from pathlib import Path

from support.base.cases import cases
from support.console.browser import HAS_WINDOWS, Visit
from support.daemons.service import Service

from api.console import FOLDER, SHARED, Console

# Ways to have text read as HTML or code. The browser refuses them; no code should try.
UNSAFE = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|setHTML|srcdoc"
    r"|\beval\(|new Function|\bsetTimeout\(\s*[\"'`]|javascript:"
)
DOM_LINES = 150
MODULE_LINES = 300
FIRST_LOAD_BYTES = 40_000
STYLE_BYTES = 24_000
MODULES = sorted(FOLDER.rglob("*.js"))


@cases("path", MODULES)
def test_a_module_stays_small_and_reads_no_text_as_code(path: Path) -> None:
    text = path.read_text()
    assert UNSAFE.search(text) is None
    bound = DOM_LINES if path.name == "dom.js" else MODULE_LINES
    assert text.count("\n") <= bound


@cases("path", MODULES)
def test_a_module_imports_by_relative_addresses_that_are_there(path: Path) -> None:
    text = path.read_text()
    imported = r'^(?:import |\} from |import \{[^"]*\} from |export [^"=]* from )"([^"]+)";$'
    for name in re.findall(imported, text, re.MULTILINE):
        assert name.startswith(("./", "../")), name
        assert (path.parent / name).exists(), name


def test_nothing_comes_from_elsewhere() -> None:
    for path in FOLDER.rglob("*.*"):
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        for url in re.findall(r"https?://[a-zA-Z0-9.-]+", text):
            assert "example" in url or "127.0.0.1" in url, (path, url)


def test_the_first_page_is_small_on_the_wire() -> None:
    console = Console()
    names = ("app.css", "app.js", "icon.svg", "pages/entry/login.js", *SHARED)
    words = [
        f"words/{area}.{language}.json" for area in ("common", "entry") for language in ("ru",)
    ]
    paths = [f"/console/{console.digest}/{name}" for name in (*names, *words)]
    pages = [console.page(path) for path in ("/login", *paths)]
    assert sum(len(page.gzipped) for page in pages if page) <= FIRST_LOAD_BYTES
    assert all(pages)
    style = console.page(f"/console/{console.digest}/app.css")
    assert style is not None
    assert len(style.body) <= STYLE_BYTES


async def test_a_page_asks_for_no_more_than_it_needs(service: Service, visit: Visit) -> None:
    tab = await visit.open(f"{service.url}/login", language="en")
    await tab.until_text("Log in", "h1")
    paths = [sent.path for sent in tab.requests]
    assert len(paths) == len(set(paths)), paths
    assert {sent.origin for sent in tab.requests} == {service.url}
    names = {path.split("/", 3)[-1] for path in paths if path.count("/") > 2}
    needed = {"app.css", "app.js", "pages/entry/login.js", *SHARED}
    icon = {"icon.svg"} if HAS_WINDOWS else set()  # it is shown beside the title of a window
    assert names == {*needed, *icon, "words/common.en.json", "words/entry.en.json"}


# Actions of a script on a page, and the directive that refuses each.
ATTACKS = {
    "document.body.innerHTML = '<b>x</b>'": "require-trusted-types-for",
    "document.body.append(Object.assign(document.createElement('script'), {text: '1'}))": (
        "require-trusted-types-for"
    ),
    "document.body.setAttribute('style', 'color: red')": "style",
    "fetch('http://127.0.0.1:9/')": "connect-src",
    "document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/'}))": "img",
}


async def test_the_browser_refuses_the_forbidden_actions_of_a_page(
    service: Service, visit: Visit
) -> None:
    visit.expect("")
    for attack, directive in ATTACKS.items():
        tab = await visit.open(f"{service.url}/login")
        await tab.until_text("Log in", "h1")
        noted = (
            "window.refused = []; document.addEventListener('securitypolicyviolation', "
            "(event) => refused.push(event.effectiveDirective + event.sample))"
        )
        await tab.run(noted)
        await tab.run(f"(() => {{ try {{ {attack} }} catch {{ }} }})()")
        await tab.until("refused.length > 0")
        assert directive in "".join(await tab.run("refused")), attack


async def test_a_foreign_page_cannot_frame_it(service: Service) -> None:
    for path in ("/login", "/console", "/device"):
        async with service.http.get(service.url + path) as answer:
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


async def test_an_address_names_identifiers_and_chooses_no_request(
    service: Service, visit: Visit
) -> None:
    person = await service.person()
    tab = await visit.open(f"{service.url}/login", language="en")
    await tab.fill("E-mail address", person.email)
    await tab.fill("Password", "long enough")
    await tab.click("form [type=submit]")
    await tab.until_text("Overview", "h1")
    for kind in ("deploys", "devices", "sessions", "jobs", "webhooks"):
        await tab.goto(f"{service.url}/console/{kind}/..%2F..%2F..%2Fauth%2Flogins%3Fx=")
        await tab.until_text("There is no such page", "h1")
    assert not [sent.path for sent in tab.requests if sent.path.startswith("/auth/logins")]
