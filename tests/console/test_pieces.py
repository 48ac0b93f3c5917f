"""The pieces that pages are made of (api/console/lib), asked in a real browser."""

import json
from typing import Any

import pytest
from support.console.browser import Tab, Visit
from support.daemons.service import Service

from .test_words import FORMS  # noqa: TID252


async def opened(service: Service, visit: Visit, language: str = "en", **more: Any) -> Tab:
    """Open a page, and have the pieces at hand in it."""
    tab = await visit.open(f"{service.url}/login", language=language, **more)
    await tab.until("document.querySelector('form') !== null")
    await tab.run(
        "(async () => {"
        " const base = document.querySelector('script').src.replace('app.js', 'lib/');"
        "for (const name of ['api', 'dom', 'forms', 'router', 'turns', 'view', 'words'])"
        " Object.assign(window, await import(`${base}${name}.js`)); })()"
    )
    await tab.run("replace(document.querySelector('main'), el('div', {id: 'place'}))")
    return tab


async def worth(tab: Tab, script: str) -> Any:
    return await tab.run(f"(() => {{ {script} }})()")


async def test_an_element_is_made_of_properties_and_text(service: Service, visit: Visit) -> None:
    tab = await opened(service, visit)
    made = await tab.run(
        "el('p', {class: 'a', hidden: false, title: null, 'aria-label': 'x', data: {rowKey: 1}},"
        " '<b>not bold</b>', 0, null, [false, [el('i', null, 'i')]]).outerHTML"
    )
    assert made == (
        '<p class="a" aria-label="x" data-row-key="1">&lt;b&gt;not bold&lt;/b&gt;0<i>i</i></p>'
    )
    for name in ("style", "onclick"):
        refused = (
            "try { el('p', {NAME: 'x'}); return 'made'; } catch (error) { return error.name; }"
        )
        assert await worth(tab, refused.replace("NAME", name)) == "TypeError"
    assert (
        await tab.run(
            "el('select', {value: 'b'}, el('option', {value: 'a'}), "
            "el('option', {value: 'b'})).value"
        )
        == "b"
    )
    assert await tab.run("svg('rect', {width: 1}).namespaceURI") == "http://www.w3.org/2000/svg"


async def test_only_the_newest_turn_of_a_thing_counts(service: Service, visit: Visit) -> None:
    tab = await opened(service, visit)
    script = """
        const one = new Turns(), other = new Turns();
        const first = one.begin(), alone = other.begin();
        const before = first();
        const second = one.begin();
        return [before, first(), second(), alone(), second()];
    """
    assert await worth(tab, script) == [True, False, True, True, True]


# A part of a page with an open fold, a focus and a selection.
LOOKED_AT = """
window.part = (n, name) => [
  facts([["Used", `${n} bytes`], ["Left", "5"]]),
  el("details", null, el("summary", null, "More"), el("p", null, `${n}`)),
  meter(n, 10, `${n} of 10`), button(name, () => {}), n > 3 ? el("p", {id: "late"}, "!") : null,
];
window.place = document.getElementById("place");
update(place, part(1, "End"));
place.querySelector("details").open = true;
place.querySelector("button").focus();
getSelection().selectAllChildren(place.querySelectorAll("dd")[1]);
window.kept = [...place.querySelectorAll("dd, details, .bar, button")];
update(place, part(4, "End"));
"""


async def test_a_part_with_changing_figures_is_not_closed_or_drawn_anew(
    service: Service, visit: Visit
) -> None:
    tab = await opened(service, visit)
    await worth(tab, LOOKED_AT)
    assert await tab.run("kept.every((each) => each.isConnected)")
    said = "place.innerText.includes('4 bytes') && place.querySelector('details').open"
    assert await tab.run(said)
    assert (
        await tab.run("document.getElementById('late') !== null && String(getSelection())") == "5"
    )
    assert await tab.run("place.querySelector('.bar').style.getPropertyValue('--share')") == "0.4"
    assert await tab.focused() == "End"
    # A button belongs to the row that it was made for.
    await worth(tab, "update(place, part(1, 'Begin'));")
    assert await tab.run("kept.at(-1).isConnected") is False
    assert await tab.run("document.getElementById('late')") is None
    # With forced colours a bar differs from its ground.
    forced = [{"name": "forced-colors", "value": "active"}]
    await tab.ask("Emulation.setEmulatedMedia", features=forced)
    drawn = "getComputedStyle(place.querySelector('.bar'))"
    assert await tab.run(f"{drawn}.forcedColorAdjust") == "none"
    highlight, ground = await tab.run(f"[{drawn}.backgroundImage, {drawn}.backgroundColor]")
    assert ground not in highlight


async def test_of_this_year_no_date_says_the_year_and_a_balance_is_cents(
    service: Service, visit: Visit
) -> None:
    tab = await opened(service, visit)
    year = await tab.run("new Date().getFullYear()")
    said = await worth(
        tab,
        "const at = (year) => new Date(year, 10, 2, 15, 4).toISOString(); const now ="
        " new Date().getFullYear(); return [date(at(now)), day(at(now)), date(at(now - 1)),"
        " moneyRoughly(88.479999), moneyRoughly(0.000004), creditsRoughly(76.129)]",
    )
    assert said[:2] == ["Nov 2, 3:04 PM", "Nov 2"]
    assert str(year - 1) in said[2]
    assert said[3:] == ["$88.47", "$0.000004", "76.12 credits"]


async def test_a_list_that_changes_keeps_its_staying_rows(service: Service, visit: Visit) -> None:
    tab = await opened(service, visit)
    await tab.run(
        "window.list = (keys) => keyed(document.getElementById('place'), keys, (key) => key,"
        " (key) => el('input', {id: key}), (node) => { node.dataset.kept = 1; })"
    )
    await tab.run("list(['a', 'b', 'c']); document.getElementById('c').focus()")
    await tab.run("list(['c', 'd', 'a'])")
    seen = (
        "[...document.getElementById('place').children]"
        ".map((each) => each.id + (each.dataset.kept ?? ''))"
    )
    assert await tab.run(seen) == ["c1", "d", "a1"]
    await tab.run("list([])")
    assert await tab.run(seen) == []


async def test_an_element_that_stays_keeps_the_focus(service: Service, visit: Visit) -> None:
    tab = await opened(service, visit)
    draw = (
        "keyed(document.getElementById('place'), KEYS, (key) => key,"
        " (key) => el('input', {id: key}))"
    )
    await tab.run(draw.replace("KEYS", "['a', 'b']"))
    await tab.run("document.getElementById('b').focus()")
    await tab.run(draw.replace("KEYS", "['new', 'a', 'b']"))
    assert await tab.run("document.activeElement.id") == "b"


@pytest.mark.parametrize(
    ("language", "money", "size", "unknown", "plural"),
    [
        ("en", "$1,234.50", "1.5 MB", "–", "At least 3 characters."),
        ("tr", "$1.234,50", "1,5 MB", "–", "En az 3 karakter."),
        ("ru", "1\u00a0234,50\u00a0$", "1,5 МБ", "–", "Не меньше 3 символов."),
        ("ko", "US$1,234.50", "1.5MB", "–", "3자 이상이어야 합니다."),
    ],
)
async def test_figures_are_written_as_their_readers_write_them(
    service: Service,
    visit: Visit,
    language: str,
    money: str,
    size: str,
    unknown: str,
    plural: str,
) -> None:
    tab = await opened(service, visit, language)
    assert await tab.run("money(1234.5)") == money
    assert await tab.run("bytes(1_500_000)") == size
    for script in (
        "money(null)",
        "bytes(undefined)",
        "count(NaN)",
        "date(null)",
        "ago('')",
        "rate()",
    ):
        assert await tab.run(script) == unknown, script
    assert await tab.run("money(0) !== '–' && bytes(0) !== '–'")
    assert await tab.run("t('form.too_short', {n: 3})") == plural
    forms = await tab.run(f"new Intl.PluralRules('{language}').resolvedOptions().pluralCategories")
    assert set(forms) == FORMS[language]


async def test_a_micro_dollar_is_money(service: Service, visit: Visit) -> None:
    tab = await opened(service, visit)
    assert await tab.run("[money(0.000001), money(0.1), money(3)]") == [
        "$0.000001",
        "$0.10",
        "$3.00",
    ]
    assert await tab.run("[credits(1), credits(2), credits(1.5)]") == [
        "1 credit",
        "2 credits",
        "1.5 credits",
    ]
    assert await tab.run("[bytes(999), bytes(1000), bytes(999_600), bytes(12_345_678_901)]") == [
        "999 bytes",
        "1 kB",
        "1 MB",
        "12.3 GB",
    ]


async def test_a_refusal_stands_beside_its_field_and_others_above_the_button(
    service: Service, visit: Visit
) -> None:
    tab = await opened(service, visit)
    await tab.run(
        "document.getElementById('place').append(form({fields: ["
        "{name: 'gb', label: 'Size', type: 'number'},"
        " {name: 'ok', label: 'Agreed', type: 'checkbox'}], submit: 'Go', send: async (values) => {"
        " window.sent = values;"
        " throw new ApiError(400, window.refusal, 'In words.', window.after ?? null); }}))"
    )
    await tab.run("window.refusal = {code: 'invalid_field', message: '', field: 'gb'}")
    await tab.fill("Size", "1.5")
    await tab.fill("Agreed", True)
    await tab.click("Go")
    await tab.until_text("In words.", ".field")
    assert await worth(tab, "return sent") == {"gb": 1.5, "ok": True}
    assert await tab.run("document.querySelector('[name=gb]').ariaInvalid") == "true"
    assert await tab.focused() == "Size (optional)"
    await tab.run("window.refusal = {code: 'too_busy', message: ''}; window.after = 600")
    await tab.click("Go")
    await tab.until_text("In words. Next try at", "form > [role=alert]")
    assert await tab.run("document.querySelector('[name=gb]').ariaInvalid") == "false"


async def test_a_dialog_asks_and_escape_is_no(service: Service, visit: Visit) -> None:
    tab = await opened(service, visit)
    asked = (
        "window.said = null; ask({title: 'End it?', text: 'It is paid.', action: 'End'})"
        ".then((answer) => { window.said = answer; }); 0"
    )
    for press, said in (("End", True), ("Cancel", False)):
        await tab.run(asked)
        await tab.click(press)
        await tab.until(f"said === {json.dumps(said)}")
    await tab.run(asked)
    await tab.until("document.querySelector('dialog[open]') !== null")
    assert await tab.focused() == "Cancel"
    await tab.press("Escape")
    await tab.until("said === false && document.querySelector('dialog') === null")


async def test_a_secret_goes_only_after_its_storage_was_confirmed(
    service: Service, visit: Visit
) -> None:
    tab = await opened(service, visit)
    await tab.run("secret({title: 'Key', value: 'pxd_1'}).then(() => { window.over = true; }); 0")
    await tab.until_text("pxd_1", "dialog")
    await tab.press("Escape")
    assert await tab.run("document.querySelector('dialog').open")
    await tab.click("I have stored it")
    await tab.until("window.over === true && !document.body.innerText.includes('pxd_1')")


async def test_a_table_is_cards_on_a_telephone(service: Service, visit: Visit) -> None:
    tab = await opened(service, visit, width=360)
    await tab.run(
        "document.getElementById('place').append(table({caption: 'Sessions', columns: ["
        "{key: 'name', label: 'Name'}, {key: 'left', label: 'Left', number: true,"
        " cell: (row) => bytes(row.left)}],"
        " rows: [{name: 'a', left: 5}, {name: null, left: null}]}))"
    )
    cell = "document.querySelector('td.number')"
    assert await tab.run(f"getComputedStyle({cell}, '::before').content") == '"Left"'
    assert await tab.run("document.querySelectorAll('td')[2].innerText") == "–"
    assert await tab.run("document.documentElement.scrollWidth") <= 360
    await tab.emulate(width=1100)
    assert await tab.run(f"getComputedStyle({cell}).display") == "table-cell"


async def test_an_empty_table_names_the_next_step(service: Service, visit: Visit) -> None:
    tab = await opened(service, visit)
    await tab.run(
        "document.getElementById('place').append(table({caption: 'x', columns: [], rows: [],"
        " empty: {text: 'None yet.', action: link('/console/sessions/new', 'Buy')}}))"
    )
    assert await tab.text(".empty a") == "Buy"


async def test_tabs_are_gone_through_by_arrows(service: Service, visit: Visit) -> None:
    tab = await opened(service, visit)
    await tab.run(
        "document.getElementById('place').append(tabs([['A', 'a'], ['B', 'b']], 'Which'))"
    )
    await tab.click("A")
    await tab.press("ArrowRight")
    assert await tab.focused() == "B"
    assert await tab.run(
        "[...document.querySelectorAll('[role=tabpanel]')].map((p) => p.hidden)"
    ) == [
        True,
        False,
    ]


@pytest.mark.long
async def test_a_single_action_keeps_its_key_until_it_was_answered(
    service: Service, visit: Visit
) -> None:
    tab = await opened(service, visit)
    await tab.run(
        "window.keys = []; window.answers = [null, 503, 200];"
        " window.fetch = async (path, options) => {"
        " keys.push(options.headers['Idempotency-Key']); const status = answers.shift();"
        " if (status === null) throw new TypeError('lost');"
        " return Response.json({ok: true}, {status}); }"
    )
    assert await tab.run("post('/x', {a: 1}, {once: true})") == {"ok": True}
    first = await tab.run("keys")
    assert len(first) == 3
    assert len(set(first)) == 1
    assert len(first[0]) == 32
    await tab.run("answers.push(200); post('/x', {a: 1}, {once: true})")
    assert len(set(await tab.run("keys"))) == 2


async def test_events_are_read_as_they_come(service: Service, visit: Visit) -> None:
    tab = await opened(service, visit)
    await tab.run(
        "window.fetch = async () => new Response(new ReadableStream({start(out) {"
        " for (const part of ['id: 7\\nevent: a\\nda', 'ta: {\"x\":\"', 'ş\"}\\n\\n: alive\\n\\n',"
        " 'event: bye\\ndata: {}\\n\\n'])"
        " out.enqueue(new TextEncoder().encode(part)); out.close(); }}),"
        " {headers: {'Content-Type': 'text/event-stream'}})"
    )
    read = (
        "(async () => { const all = []; for await (const each of events('/s', {heartbeats: %s}))"
        " all.push(each); return all; })()"
    )
    told = [
        {"event": "a", "id": "7", "data": {"x": "ş"}},
        {"event": "bye", "id": "", "data": {}},
    ]
    assert await tab.run(read % "false") == told
    heartbeat = {"event": "heartbeat", "id": "", "data": None}
    assert await tab.run(read % "true") == [told[0], heartbeat, told[1]]
