"""Samples, the bounds that were promised on them, and their tables for terminal and docs."""

import os
import platform
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bench.bought import is_ours
from bench.servers import NO_PROXY, ROOT

REPORT = ROOT / "docs" / "reference" / "benchmarks.md"
BESIDE = ("dante", "microsocks")


class Samples:
    """Measured values, by measure and server, one value a round."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, measure: str, server: str, value: float) -> None:
        self._values[measure, server].append(value)

    def values(self, measure: str, server: str) -> list[float]:
        """Return the value of each round."""
        return self._values.get((measure, server), [])

    def median(self, measure: str, server: str) -> float | None:
        values = self.values(measure, server)
        return statistics.median(values) if values else None

    def ratio(self, measure: str, server: str, other: str) -> float | None:
        """Return how many times another server's figure one server's is: the rounds' median.

        Both are taken from the same round each time, so that a slow round does not change the
        ratio.
        """
        ours = self._values.get((measure, server), [])
        theirs = self._values.get((measure, other), [])
        ratios = [each / than for each, than in zip(ours, theirs, strict=False) if than]
        return statistics.median(ratios) if ratios else None

    def of_best(self, measure: str, server: str, *, lowest: bool) -> float | None:
        """Return the ratio of a server's figure to that of the best server that is not proxyd.

        The best is the one with the best median: the lowest of costs, the highest of speeds.
        """
        figures = {
            name: figure
            for name in self.servers()
            if not is_ours(name) and name != NO_PROXY.name
            if (figure := self.median(measure, name)) is not None
        }
        if not figures:
            return None
        best = (min if lowest else max)(figures, key=lambda name: figures[name])
        return self.ratio(measure, server, best)

    def servers(self) -> list[str]:
        """Return the servers, in the order in which they were measured first."""
        return list(dict.fromkeys(server for _, server in self._values))

    def measures(self) -> list[str]:
        return list(dict.fromkeys(measure for measure, _ in self._values))


@dataclass(frozen=True)
class Bound:
    """A promise about a figure; None is an unknown figure."""

    promise: str
    figure: float | None
    limit: float
    at_most: bool = False

    @property
    def verdict(self) -> str:
        if self.figure is None:
            return "not measured"
        kept = self.figure <= self.limit if self.at_most else self.figure >= self.limit
        return "pass" if kept else "miss"

    @property
    def wanted(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.limit:g}"

    @property
    def measured(self) -> str:
        """Return the figure of a missed promise."""
        return self.verdict if self.figure is None else f"{self.figure:.3f}"


@dataclass
class Part:
    """One part of the benchmark: its samples, the promises about them, and notes."""

    name: str
    samples: Samples = field(default_factory=Samples)
    bounds: list[Bound] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """Return the table of the figures, the missed and the kept promises, and the notes."""
        blocks = [_samples_table(self.samples)] if self.samples.measures() else []
        if missed := [each for each in self.bounds if each.verdict != "pass"]:
            blocks.append(_table(["missed", "wanted", "measured"], _missed_rows(missed)))
        if kept := [each for each in self.bounds if each.verdict == "pass"]:
            blocks.append(f"Kept: {'; '.join(_kept(kept))}.")
        return "\n\n".join([*blocks, *self.notes])


def machine() -> str:
    """Return a description of the machine."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    kernel = ".".join(re.findall(r"\d+", platform.release())[:2])
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    version = ".".join(platform.python_version_tuple()[:2])
    name = model[1] if model else platform.machine()
    return (
        f"{os.cpu_count()} cores ({name}), Linux {kernel} with {control} as its congestion"
        f" control, Python {version}."
    )


def rewrite(mark: str, text: str) -> None:
    """Put a text between its two marks in the documentation, and change nothing else.

    The documentation shows only a choice of the tables: without the marks nothing changes.
    """
    mark = f"<!-- {mark} -->"
    before, first, rest = REPORT.read_text().partition(mark)
    if not first:
        progress(f"{REPORT.name} has no place for {mark}")
        return
    _, second, after = rest.partition(mark)
    assert second, f"{REPORT.name} has only one mark {mark}"
    REPORT.write_text(f"{before}{mark}\n{text}\n{mark}{after}")


def progress(text: str) -> None:
    """Print the progress."""
    print(text, file=sys.stderr, flush=True)


def _groups(bounds: Iterable[Bound]) -> Iterable[tuple[str, list[Bound]]]:
    """Return the bounds by promise: bounds `case: promise` with one promise are a group."""
    groups: dict[tuple[str, str], list[Bound]] = {}
    for bound in bounds:
        promise = bound.promise.rpartition(": ")[2]
        groups.setdefault((promise, bound.wanted), []).append(bound)
    for (promise, _), group in groups.items():
        yield (promise if len(group) > 1 else group[0].promise), group


def _missed_rows(bounds: Iterable[Bound]) -> list[list[str]]:
    """Return a row for each promise, with each case that misses it."""
    rows = []
    for promise, group in _groups(bounds):
        cases = [f"{each.promise.rpartition(': ')[0]} {each.measured}" for each in group]
        measured = "; ".join(cases) if len(group) > 1 else group[0].measured
        rows.append([promise, group[0].wanted, measured])
    return rows


def _kept(bounds: Iterable[Bound]) -> Iterable[str]:
    """Return each kept promise with its bound and, in brackets, the worst figure of its cases."""
    for promise, group in _groups(bounds):
        figures = [each.figure for each in group if each.figure is not None]
        worst = max(figures) if group[0].at_most else min(figures)
        yield f"{promise} {group[0].wanted} ({worst:.3f})"


def _samples_table(samples: Samples) -> str:
    servers = samples.servers()
    beside = [name for name in BESIDE if name in servers and "proxyd" in servers]
    rows = []
    for measure in samples.measures():
        row = [measure]
        row += [_figure(samples.median(measure, server)) for server in servers]
        row += [_figure(samples.ratio(measure, "proxyd", name), "x") for name in beside]
        rows.append(row)
    return _table(["", *servers, *(f"proxyd / {name}" for name in beside)], rows)


def _figure(value: float | None, unit: str = "") -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}{unit}" if value >= 1000 else f"{value:.3g}{unit}"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
