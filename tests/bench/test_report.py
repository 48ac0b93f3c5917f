"""Text of the benchmark about its figures, and the pages that it is written into."""

import pytest

from bench import report
from bench.report import Bound, Samples


@pytest.mark.parametrize(
    ("bound", "verdict"),
    [
        (Bound("speed", 0.55, 0.55), "pass"),
        (Bound("speed", 0.54, 0.55), "miss"),
        (Bound("cost", 0.25, 0.25, at_most=True), "pass"),
        (Bound("cost", 0.26, 0.25, at_most=True), "miss"),
        (Bound("cost", None, 0.25, at_most=True), "not measured"),
    ],
)
def test_a_bound_is_kept_or_missed(bound, verdict):
    assert bound.verdict == verdict


def test_missed_promises_have_a_row_and_kept_ones_their_worst_figure():
    bounds = [
        Bound("one stream: speed", 2, 1),
        Bound("two streams: speed", 0.5, 1),
        Bound("three: speed", None, 1),
        Bound("five: speed", 1.5, 1),
        Bound("four streams: speed", 2.4, 2.5),
        Bound("one: memory", 5, 6, at_most=True),
        Bound("two: memory", 4, 6, at_most=True),
    ]
    assert report.Part("x", bounds=bounds).markdown().splitlines() == [
        "| missed | wanted | measured |",
        "|---|---|---|",
        "| speed | ≥ 1 | two streams 0.500; three not measured |",
        "| four streams: speed | ≥ 2.5 | 2.400 |",
        "",
        "Kept: speed ≥ 1 (1.500); memory ≤ 6 (5.000).",
    ]


def test_a_ratio_is_taken_within_each_round():
    samples = Samples()
    for ours, theirs in ((2, 1), (30, 10), (8, 2)):
        samples.add("speed", "ours", ours)
        samples.add("speed", "theirs", theirs)
    assert samples.ratio("speed", "ours", "theirs") == 3
    assert samples.median("speed", "ours") == 8
    assert samples.ratio("speed", "ours", "nobody") is None


def test_the_best_peer_is_neither_proxyd_nor_no_proxy():
    samples = Samples()
    for name, speed in (
        ("no proxy", 9),
        ("proxyd", 6),
        ("proxyd interpreted", 5),
        ("proxyd, 2 processes", 8),
        ("dante", 2),
        ("microsocks", 3),
    ):
        samples.add("speed", name, speed)
    assert samples.of_best("speed", "proxyd", lowest=False) == 2
    assert samples.of_best("speed", "proxyd", lowest=True) == 3
    assert Samples().of_best("speed", "proxyd", lowest=True) is None


def test_one_part_of_the_document_is_rewritten_and_the_rest_is_left_alone(tmp_path, monkeypatch):
    document = tmp_path / "benchmarks.md"
    document.write_text("a\n<!-- x -->\nold\n<!-- x -->\nb\n<!-- y -->\nkept\n<!-- y -->\n")
    monkeypatch.setattr(report, "REPORT", document)
    report.rewrite("x", "new")
    assert document.read_text() == (
        "a\n<!-- x -->\nnew\n<!-- x -->\nb\n<!-- y -->\nkept\n<!-- y -->\n"
    )


def test_a_part_without_a_place_in_the_document_changes_nothing(tmp_path, monkeypatch):
    document = tmp_path / "benchmarks.md"
    document.write_text("a\n<!-- x -->\n")
    monkeypatch.setattr(report, "REPORT", document)
    report.rewrite("z", "printed only")
    assert document.read_text() == "a\n<!-- x -->\n"
    with pytest.raises(AssertionError):
        report.rewrite("x", "between one mark and the end")
