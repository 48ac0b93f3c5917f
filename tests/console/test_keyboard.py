"""The console by the keyboard alone: into it, through its menu, over a form, and out."""

from support.console.browser import Tab, Visit
from support.daemons.service import Service

TABS_MAX = 60


async def tab_to(tab: Tab, wanted: str) -> None:
    """Press Tab until the focused element has the text; the focus must be visible at each stop."""
    stops = []
    for _ in range(TABS_MAX):
        await tab.press("Tab")
        stops.append(await tab.focused())
        is_seen = await tab.run(
            "(({ activeElement: on }) => on === document.body || on.matches(':focus-visible') &&"
            " getComputedStyle(on).outlineStyle !== 'none')(document)"
        )
        assert is_seen, f"the focus on {stops[-1]} cannot be seen"
        if stops[-1] == wanted:
            return
    raise AssertionError(f"Tab never came to {wanted}: {stops}")


async def test_everything_is_reached_without_a_mouse(service: Service, visit: Visit) -> None:
    person = await service.person(usd="5")
    tab = await visit.open(f"{service.url}/login")
    await tab.settled()
    await tab_to(tab, "E-mail address")
    await tab.type(person.email)
    await tab_to(tab, "Password")
    await tab.type("long enough")
    await tab.press("Enter")
    await tab.until("location.pathname === '/console'")
    await tab.settled()
    assert await tab.focused() == "Overview", "the heading of the new page"
    for entry, path in (("Devices", "/console/devices"), ("Wallet", "/console/wallet")):
        await tab.run("document.activeElement.blur()")
        await tab.run("document.querySelector('.skip').focus()")
        await tab_to(tab, entry)
        await tab.press("Enter")
        await tab.until(f"location.pathname === '{path}'")
        await tab.settled()
    await tab.run("document.querySelector('.skip').focus()")
    await tab.press("Enter")
    await tab.until("location.hash === '#main'")
    await tab.goto(f"{service.url}/console")
    await tab.settled()
    await tab_to(tab, "Log out")
    await tab.press("Enter")
    await tab.until("location.pathname === '/login'")
