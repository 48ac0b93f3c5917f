"""Sentences of the code and the pages, and the patterns that make a reader read a sentence twice.

A habit is a turn of phrase that hides the subject or the object of a sentence. Each has a remedy.
The list finds habits, not every unclear sentence: a sentence without them can still be unclear.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Sentence(NamedTuple):
    """A sentence: its place, its kind and its text.

    `kind` is summary, docstring, comment, log, error, page or word; a word is a text of the
    console.
    """

    path: Path
    line: int
    kind: str
    text: str


class Habit(NamedTuple):
    """A turn of phrase and its remedy."""

    pattern: re.Pattern[str]
    remedy: str


def _habit(pattern: str, remedy: str) -> Habit:
    return Habit(re.compile(pattern, re.IGNORECASE), remedy)


_RELATIVE = r"(?:who|whom|what|which)"
_BE = r"(?:am|is|are|was|were|be|been|being)"
_BE_HAVE = r"(?:is|are|was|were|has|have|had)"

HABITS = (
    _habit(
        rf"^(?:{_RELATIVE}|whoever|whatever|nobody|somebody|those|(?:that|he|one) {_RELATIVE}"
        r"|the one (?:that|who))\b",
        "begin with a verb, or with the noun of the code",
    ),
    _habit(
        r"\b(?:whoever|whatever|whom|somebody|nobody)\b",
        "name the actor: the buyer, the device, the caller, the node",
    ),
    _habit(
        rf"\b(?:of|for|from|to|by|with|than|that|and|or) (?:{_RELATIVE}|those (?:that|who))\b"
        r"(?! (?:kind|way|side|order|day))",
        "name the thing: of the bytes that ..., for the device that ...",
    ),
    _habit(r"\bwhat\b(?! (?:kind|sort|if)\b)(?!.*\?$)", "name the thing"),
    _habit(
        rf"\bwho (?:{_BE_HAVE}|waits|asks|reads|comes|goes|gets|sets|builds)\b",
        "name the actor",
    ),
    _habit(
        rf"\b{_BE} (?:told|asked|heard|said|meant|named)\b",
        "a call is a call: the program calls, notifies, requests or sends",
    ),
    _habit(r"\bhear[sd]? (?:of|from|about)\b", "a program receives a message"),
    _habit(
        rf"\b(?:that|as) there {_BE_HAVE}\b|\b(?:there|that) is none\b|\bis none\b",
        "turn it round: no device exists",
    ),
    _habit(r"; return (?:of|how|what|who|whether)\b", "two sentences, the second with a noun"),
    _habit(
        rf"\bhow (?:it|they|he|many|much|long) {_BE_HAVE}\b",
        "a noun: the state, the number, the duration",
    ),
    _habit(r"\b(?:so|as) (?:many|much|long|often)\b(?! as)", "a number or a noun"),
    _habit(
        r"\bmay be meant\b|\bcomes? to nothing\b|\bin the end\b|\bby (?:itself|themselves) alone\b"
        r"|\b(?:alone|at once)[.,]? *$",
        "plain words",
    ),
    _habit(r", too\b", "also, or nothing"),
    _habit(
        rf"\b(?:one|those|that) (?:of|which|who|that) {_BE_HAVE} (?:its|his|their|the|an?)\b",
        "a shorter clause",
    ),
)

# One search is enough for a sentence without a habit.
_ANY = re.compile("|".join(habit.pattern.pattern for habit in HABITS), re.IGNORECASE)
_LOGGED = {"debug", "info", "warning", "error", "exception", "critical"}
_DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|pragma|!|ruff|mypy|fmt)")
_COMMENT = re.compile(r"(?:^|\s)(#\s.*)$")
_END = re.compile(r"(?<=[.!?;:])\s+")


def habits_of(text: str) -> list[str]:
    """Return the remedies of the habits in a sentence. Code between backticks does not count."""
    bare = re.sub(r"`[^`]*`", "`x`", text)
    if not _ANY.search(bare):
        return []
    return [habit.remedy for habit in HABITS if habit.pattern.search(bare)]


def sentences_of(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a Python module, a Markdown page or a file of the console's words."""
    if path.suffix == ".md":
        yield from _of_page(path)
    elif path.suffix == ".json":
        yield from _of_words(path)
    else:
        source = path.read_text()
        statements = list(_statements(ast.parse(source)))
        yield from _of_comments(path, source, _texts_with_hash(source, statements))
        for each in statements:
            yield from _of_statement(path, each)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a module or statement, and the statements within it.

    The expressions are left out: they are nine of ten nodes, and a sentence of the code begins in a
    statement.
    """
    yield node
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        if isinstance(inner := getattr(node, name, None), list):
            for each in inner:
                yield from _statements(each)


def _texts_with_hash(source: str, statements: list[ast.AST]) -> Iterator[ast.Constant]:
    """Yield the texts of the code on lines with a `#`, which can look like a comment."""
    marked = {number for number, row in enumerate(source.splitlines(), 1) if "#" in row}
    for statement in statements:
        if not isinstance(statement, ast.stmt) or hasattr(statement, "body"):
            continue
        last = statement.end_lineno or statement.lineno
        if not marked.isdisjoint(range(statement.lineno, last + 1)):
            for each in ast.walk(statement):
                if isinstance(each, ast.Constant) and "#" in str(each.value):
                    yield each


def _split(text: str) -> list[str]:
    """Return the sentences of a text. A single word does not count."""
    return [each for each in _END.split(" ".join(text.split())) if " " in each]


def _of_statement(path: Path, node: ast.AST) -> Iterator[Sentence]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if doc := ast.get_docstring(node):
            line = node.body[0].lineno
            first, *rest = _split(doc) or [""]
            yield Sentence(path, line, "summary", first)
            yield from (Sentence(path, line, "docstring", each) for each in rest)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        if isinstance(node.value.func, ast.Attribute) and node.value.func.attr in _LOGGED:
            yield from _of_argument(path, node.value, "log")
    elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield from _of_argument(path, node.exc, "error")


def _of_argument(path: Path, call: ast.Call, kind: str) -> Iterator[Sentence]:
    """Yield the sentences of the first argument of a call, if it is a text or an f-string."""
    first = call.args[0] if call.args else None
    parts = first.values if isinstance(first, ast.JoinedStr) else [first]
    text = "".join(
        part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "`x`"
        for part in parts
    )
    if first is not None:
        yield from (Sentence(path, call.lineno, kind, each) for each in _split(text))


def _of_comments(path: Path, source: str, texts: Iterable[ast.Constant]) -> Iterator[Sentence]:
    """Yield the sentences of the comments. Comments on consecutive lines are one text.

    A tokenizer would need twice the time of everything else here. A comment is found by its look,
    outside of the strings of the module, `texts`.
    """
    in_string = {
        line for each in texts for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
    }
    start, last, block = 0, 0, list[str]()
    for number, row in enumerate(source.splitlines(), 1):
        found = _COMMENT.search(row)
        if found is None or number in in_string or _DIRECTIVE.match(found[1]):
            continue
        if number != last + 1:
            yield from (Sentence(path, start, "comment", each) for each in _split(" ".join(block)))
            start, block = number, []
        block.append(found[1].lstrip("# ").partition("# noqa")[0])
        last = number
    yield from (Sentence(path, start, "comment", each) for each in _split(" ".join(block)))


def _of_page(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a page, without its code. Each cell of a table is a text."""
    fenced, start, block = False, 0, list[str]()
    for number, row in enumerate([*path.read_text().splitlines(), ""], 1):
        fenced ^= row.lstrip().startswith("```")
        is_cells = row.startswith("|")
        is_break = fenced or is_cells or row.startswith(("    ", "```")) or not row.strip()
        if is_break or re.match(r"\s*(?:[-*#>]|\d+\.)\s", row):
            yield from (Sentence(path, start, "page", each) for each in _split(" ".join(block)))
            block = []
        if is_cells and not fenced:
            for cell in row.strip("|").split("|"):
                yield from (Sentence(path, number, "page", each) for each in _split(_bare(cell)))
        elif not is_break:
            start = start if block else number
            block.append(_bare(row.lstrip("#->* ")))


def _bare(row: str) -> str:
    """Return a row of a page without the addresses of its links."""
    return re.sub(r"\]\([^)]*\)", "]", row)


def _of_words(path: Path) -> Iterator[Sentence]:
    for value in json.loads(path.read_text()).values():
        texts = [value] if isinstance(value, str) else map(str, (value or {}).values())
        yield from (Sentence(path, 1, "word", each) for text in texts for each in _split(text))
