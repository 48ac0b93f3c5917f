"""Texts that hide or turn other characters, and names without a shape."""

from support.base.cases import cases

from market.base.texts import can_be_shown, shows_nothing


@cases(
    "text",
    [
        "",
        "a line",
        "two\nlines\r\n\tof text",
        "\u0645\u0631\u062d\u0628\u0627",
        "\ud55c\uae00",
        "\U0001f600",
        "tr\u00e8s bien\u00a0! \u00ab\u202foui\u202f\u00bb",
        "\u65e5\u672c\u3000\u8a9e",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian
        "\u0915\u094d\u200d\u0937",  # Hindi
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    ],
)
def test_texts_of_people_can_be_shown(text: str) -> None:
    assert can_be_shown(text)


@cases("text", ["\u202egnp.exe", "a\u2066b", "a\x00b", "\x1b[2J", "a\u200fb", "\x7f", "a\u2028b"])
def test_characters_that_turn_or_clear_others_cannot(text: str) -> None:
    assert not can_be_shown(text)


@cases(
    "text",
    [
        "",
        " ",
        "\u3164",
        "\u115f \u1160",
        "\uffa0",
        "\u2800",
        "\u034f\ufe0f",
        "\u200b",
        "\U00016fe4",
        "\U0001d159",
    ],
)
def test_a_name_without_a_shape_shows_nothing(text: str) -> None:
    assert shows_nothing(text)


@cases("text", ["a", ".", "\ud55c\u3164", "\u2764\ufe0f", "\u0645"])
def test_one_character_with_a_shape_is_enough(text: str) -> None:
    assert not shows_nothing(text)
