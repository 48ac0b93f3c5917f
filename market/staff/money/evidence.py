"""The tables of the evidence about a dispute."""

from collections.abc import Mapping

from market.staff.base.columns import Column, money, plain, time

# By the name of the evidence: statements of both sides, attempts, files, and devices.
TABLES: Mapping[str, tuple[Column, ...]] = {
    "reviews": (
        plain("attempt"),
        plain("state"),
        money("price"),
        money("earned"),
        money("refunded"),
        plain("worker", "user_id"),
        time("disputed_at"),
        plain("reason"),
    ),
    "answers": (
        plain("worker", "user_id"),
        time("answered_at"),
        plain("answer"),
    ),
    "attempts": (
        plain("attempt"),
        plain("device", "device_id"),
        time("began_at", "work_started_at"),
        time("ended_at"),
        plain("outcome"),
        plain("exit_code"),
        plain("failure", "failure_kind"),
        plain("cpu_seconds"),
        plain("memory_bytes", "max_memory_bytes"),
        plain("reason"),
    ),
    "artifacts": (
        plain("id"),
        plain("attempt"),
        plain("kind"),
        plain("name"),
        plain("bytes", "size_bytes"),
        plain("sha256", "digest"),
        time("whole_at"),
    ),
    "devices": (
        plain("device", "device_id"),
        plain("owner", "owner_id"),
        plain("attempts", "history.attempts"),
        plain("completed", "history.completed"),
        plain("failed", "history.failed"),
        plain("lost", "history.lost"),
        plain("samples", "history.samples"),
        plain("samples_right", "history.samples_right"),
        plain("disputes", "disputes.disputed"),
        plain("reversed", "disputes.reversed"),
        plain("split", "disputes.split"),
    ),
}
