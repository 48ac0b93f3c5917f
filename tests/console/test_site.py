"""The operator's name, logo, colours and mode of registration, as a browser shows them."""

from pathlib import Path

from support.console.browser import Visit
from support.daemons.service import running_in

from market.staff.base.roles import Machine
from market.staff.site import site
from market.staff.site.site import Publication, TextKind

LOGO = '<svg xmlns="http://www.w3.org/2000/svg" width="32" height="32"><path d="M0 0h9v9z"/></svg>'


async def test_a_visitor_with_an_invitation_opens_an_account(tmp_path: Path, visit: Visit) -> None:
    logo = tmp_path / "logo.svg"
    logo.write_text(LOGO)
    look = {
        "name": "Ada's",
        "logo": str(logo),
        "colour": "#7a1fa2",
        "support": "help@example.com",
        "registration": "invited",
    }
    async with running_in(tmp_path, site=look) as service:
        context = service.daemon.market.context
        made = await site.invite(context, Machine("root"), uses=1, days=1, why="a friend")
        tab = await visit.open(f"{service.url}/register?invitation={made.code}")
        await tab.until_text("Ada's", ".brand")
        await tab.until("document.querySelector('.logo').naturalWidth === 32")
        await tab.until("document.title.endsWith('Ada\\'s')")
        await tab.until("document.querySelector('a[href=\"mailto:help@example.com\"]') !== null")
        brand = "getComputedStyle(document.documentElement).getPropertyValue('--brand')"
        await tab.until(f"{brand}.includes('#7a1fa2')")
        await tab.fill("User name", "bob")
        await tab.fill("E-mail address", "bob@example.com")
        await tab.fill("Password", "long enough")
        await tab.click("form [type=submit]")
        await tab.until_text("Confirm your address", "h1")


async def test_a_closed_service_has_no_form(tmp_path: Path, visit: Visit) -> None:
    async with running_in(tmp_path, site={"registration": "closed"}) as service:
        tab = await visit.open(f"{service.url}/register")
        await tab.until_text("This service opens no new accounts.", "main")
        await tab.until("document.querySelector('main form') === null")


async def test_new_terms_are_accepted_at_the_next_login(tmp_path: Path, visit: Visit) -> None:
    async with running_in(tmp_path) as service:
        person = await service.person()
        context = service.daemon.market.context
        text = Publication(TextKind.TERMS, "en", "Be *kind*.", context.now())
        await site.publish(context, Machine("root"), text, "the first")
        tab = await visit.open(f"{service.url}/login")
        await tab.fill("E-mail address", person.email)
        await tab.fill("Password", "long enough")
        await tab.click("form [type=submit]")
        await tab.until_text("Our texts have changed", "h1")
        await tab.until("document.querySelector('main a').href.endsWith('/terms?version=1')")
        await tab.click("main input[type=checkbox]")
        await tab.click("form [type=submit]")
        await tab.until("location.pathname === '/console'")
        await tab.until_text("Terms of use", ".contact")
        await tab.goto(f"{service.url}/terms")
        await tab.until_text("kind", "main em")
