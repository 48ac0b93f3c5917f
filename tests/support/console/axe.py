"""Faults that axe-core finds in a page (WCAG 2.2 AA)."""

import functools
from pathlib import Path

import pytest

from support.console.browser import Tab

SCRIPT = (
    Path(__file__).parent.parent.parent / "clients" / "node_modules" / "axe-core" / "axe.min.js"
)
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

needs_axe = pytest.mark.skipif(not SCRIPT.exists(), reason="no axe-core: make clients")

RUN = """
axe.run(document, %s).then(({ violations }) => violations.map(
  ({ id, help, nodes }) => `${id}: ${help}: ` + nodes.slice(0, 5).map(({ html, failureSummary }) =>
    `${html.slice(0, 200)} (${failureSummary.replaceAll("\\n", " ").slice(0, 200)})`).join("; ")))
"""


@functools.cache
def _source() -> str:
    return SCRIPT.read_text()


async def faults(tab: Tab, *, colours_alone: bool = False) -> list[str]:
    """Return the faults of a page, a line for each rule.

    Args:
        tab: the page, as it is now.
        colours_alone: look at contrast only: nothing else is another thing in another scheme.
    """
    if not await tab.run("'axe' in window"):
        await tab.run(f"{_source()}; 0")
    kind, values = ("rule", ["color-contrast"]) if colours_alone else ("tag", RULES)
    options = f'{{ runOnly: {{ type: "{kind}", values: {values} }}, resultTypes: ["violations"] }}'
    found = await tab.run(RUN % options)
    assert isinstance(found, list)
    return found
