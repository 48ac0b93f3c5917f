"""Sentences that every reader understands the first time: a limit for the habits that hide the
subject.

The limits are shares, because a habit is sometimes the right word. `support.base.sentences` lists
the habits with their remedies.
"""

import functools
from collections import Counter
from pathlib import Path

import pytest
from support.base.cases import cases
from support.base.sentences import Sentence, habits_of, sentences_of

ROOT = Path(__file__).parent.parent
ROOMS = ("api", "client", "clusters", "config", "market", "proxyd", "storage", "docs", ".")
TESTS = "tests"

# Most hard sentences per hundred, in each room.
SHARE_MAX = 0.01
SUMMARIES_MAX = 0.005

# Sentences with a habit on purpose, each with its reason.
EXCEPTIONS: dict[str, str] = {}


def pages_and_modules(room: str) -> list[Path]:
    """Return the files of a room whose sentences count; of ".", the pages at the root."""
    if room == ".":
        return sorted(ROOT.glob("*.md"))
    folder = ROOT / room
    patterns = ("*.py", "*.md", "words/*.en.json")
    found = {path for pattern in patterns for path in folder.rglob(pattern)}
    return sorted(path for path in found if "node_modules" not in path.parts)


def report(hard: list[Sentence]) -> str:
    """Return one line for each hard sentence, with its place and its remedy."""
    return "\n".join(
        f"{each.path.relative_to(ROOT)}:{each.line}: {each.text}\n    {habits_of(each.text)[0]}"
        for each in hard
    )


@functools.cache
def found_in(room: str) -> list[Sentence]:
    """Return the sentences of a room."""
    return [each for path in pages_and_modules(room) for each in sentences_of(path)]


@cases("room", ROOMS)
def test_few_sentences_of_a_room_are_hard(room: str) -> None:
    _assert_few_are_hard(room)


@pytest.mark.long  # they are half of all code
def test_few_sentences_of_the_tests_are_hard() -> None:
    _assert_few_are_hard(TESTS)


def _assert_few_are_hard(room: str) -> None:
    found = found_in(room)
    hard = [each for each in found if habits_of(each.text) and each.text not in EXCEPTIONS]
    summaries = [each for each in hard if each.kind == "summary"]
    every = Counter(each.kind for each in found)
    assert found
    assert len(hard) <= SHARE_MAX * len(found), report(hard)
    assert len(summaries) <= SUMMARIES_MAX * every["summary"], report(summaries)


def test_each_exception_is_a_sentence_of_the_code() -> None:
    missing = set(EXCEPTIONS)
    for room in (*ROOMS, TESTS):
        if missing:  # another process of the tests may have read the rooms
            missing -= {each.text for each in found_in(room)}
    assert not missing


@cases(
    "text",
    [
        "Who waits for the lock.",
        "Return what a copy has come to.",
        "The bytes of those that left.",
        "The caller is told once.",
        "It hears of the end.",
        "Count the rows; return how many.",
        "Stop it, too.",
        "The log shows that there is no lease.",
    ],
)
def test_a_habit_is_found(text: str) -> None:
    assert habits_of(text)


@cases(
    "text",
    [
        "Return the result of a copy.",
        "Close the socket when the exit dies.",
        "`who` is a column of the access log.",
        "The code that runs under PostgreSQL needs no retry.",
    ],
)
def test_a_plain_sentence_has_no_habit(text: str) -> None:
    assert habits_of(text) == []


def test_sentences_of_a_module_have_a_kind_and_a_line(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""First one. Second one."""\n\n# A comment\n# of two lines.\nlog.info("it has ended")\n'
        'raise ValueError(f"{name} has no end")\n'
    )
    assert {(each.line, each.kind, each.text) for each in sentences_of(module)} == {
        (1, "summary", "First one."),
        (1, "docstring", "Second one."),
        (3, "comment", "A comment of two lines."),
        (5, "log", "it has ended"),
        (6, "error", "`x` has no end"),
    }


def test_code_of_a_page_does_not_count(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A title here\n\nA line\ngoes on. It ends.\n\n```\nwho is it\n```\n\n"
        "    whoever comes\n\n"
        "| a cell | [a link](who.md) |\n|---|---|\n\n- one item\n- another item\n"
    )
    assert [each.text for each in sentences_of(page)] == [
        "A title here",
        "A line goes on.",
        "It ends.",
        "a cell",
        "[a link]",
        "one item",
        "another item",
    ]
