"""Text of a report: columns for people."""

from collections.abc import Iterator, Mapping, Sequence

from proxyd.cli.output import printable
from proxyd.cli.staff.base.desk import LOGS, Report, Row


def in_words(report: Report) -> str:
    """Return a report as text: a list of rows becomes columns, below the name of the list."""
    if "found" in report:
        return "\n\n".join(_hits_in_words(each) for each in report["found"]) or "nothing is found"
    parts = []
    for name, value in report.items():
        if name == LOGS:
            parts += [
                _list(f"{stream} of attempt {number}", lines)
                for number, stream, lines in _streams(value)
            ] or [f"{name}: none"]
        elif isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
            parts.append(_list(name, value))
        elif isinstance(value, list):
            parts.append("\n".join([f"{name}:", *(f"  {each}" for each in value)]))
        elif isinstance(value, Mapping):
            parts.append(
                f"{name}: {', '.join(f'{key} {_cell(each)}' for key, each in value.items())}"
            )
        else:
            parts.append(f"{name}: {_cell(value)}")
    return "\n".join(parts)


def _streams(logs: Sequence[Row]) -> Iterator[tuple[int, str, list[Row]]]:
    """Yield each stream of the logs of attempts, with the number of its attempt."""
    for each in logs:
        for name, lines in each.items():
            if name != "attempt":
                yield each["attempt"], name, lines


def _list(name: str, rows: Sequence[Row]) -> str:
    return f"{name}:\n{_table(rows)}" if rows else f"{name}: none"


def _hits_in_words(found: Row) -> str:
    text = f"{found['by']}:\n{_table(found['hits'])}"
    return text if found["more_than"] is None else f"{text}\n  more than {found['more_than']}"


def _table(rows: Sequence[Row]) -> str:
    heads = list(dict.fromkeys(head for row in rows for head in row))
    lines = [heads, *([_cell(row.get(head)) for head in heads] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    return "\n".join(
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    """Return a value as one line, without the control characters of terminals."""
    if value is None or value in ("", {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        text = ", ".join(
            f"{name}: {_cell(old)} to {_cell(new)}" for name, (old, new) in value.items()
        )
    else:
        text = str(value)
    return printable(text)
