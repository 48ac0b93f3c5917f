"""Markdown of the operator becomes HTML that can do nothing."""

import pytest

from api.site.markup import as_html


def test_markdown_is_shown() -> None:
    assert as_html("# A\n\n- *b*\n\n[c](https://example.com)\n") == (
        '<h1>A</h1>\n<ul>\n<li><em>b</em></li>\n</ul>\n<p><a href="https://example.com">c</a></p>\n'
    )
    assert "<table>" in as_html("|a|\n|-|\n|1|\n")


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "a <img src=x onerror=alert(1)>",
        "[a](javascript:alert(1))",
        "[a](JaVaScRiPt:alert(1))",
        "[a](data:text/html,b)",
        "[a](\x01javascript:alert(1))",
        "![a](https://example.com/a.png)",
        '[a](https://example.com "\\"onload=alert(1)")',
        "[a]: javascript:alert(1)\n\n[a]",
    ],
)
def test_nothing_in_it_runs_or_loads(text: str) -> None:
    html = as_html(text)
    assert "<script" not in html
    assert "<img" not in html
    assert 'href="javascript' not in html.lower()
    assert 'href="data' not in html.lower()
    assert '"onload' not in html
