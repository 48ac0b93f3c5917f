from datetime import UTC, datetime

from support.base.cases import cases

from proxyctl.worker.agent.rules import RECORDS_BYTES, Readings, Rules
from proxyctl.worker.base.record import When


def reason(when: When, readings: Readings, hour: int = 12) -> str:
    return Rules(
        when, lambda: datetime(2026, 1, 1, hour, tzinfo=UTC), lambda: readings
    ).reason_to_rest()


@cases(
    ("when", "readings", "words"),
    [
        (When(), Readings(), ""),
        (When(hours=("22:00-07:00",)), Readings(), "outside the hours 22:00-07:00"),
        (When(), Readings(on_battery=True), "on battery"),
        (When(on_battery=True), Readings(on_battery=True), ""),
        (When(idle_minutes=10), Readings(idle_seconds=599), "somebody uses"),
        (When(idle_minutes=10), Readings(idle_seconds=600), ""),
        (When(idle_minutes=10), Readings(), ""),
        (When(), Readings(cpu_temp=90.5), "the processor has 90 degrees"),
        (When(cpu_temp_max=0), Readings(cpu_temp=120), ""),
        (When(), Readings(gpu_temp=88), "the GPU has 88 degrees"),
        (When(), Readings(free_bytes=RECORDS_BYTES - 1), "the disk of the device is full"),
        (When(), Readings(free_bytes=RECORDS_BYTES), ""),
    ],
)
def test_when_a_device_rests(when: When, readings: Readings, words: str) -> None:
    said = reason(when, readings)
    assert bool(said) == bool(words)
    assert words in said


def test_a_device_that_was_too_hot_cools_down_first() -> None:
    degrees = [91.0]
    rules = Rules(
        When(cpu_temp_max=90),
        lambda: datetime(2026, 1, 1, tzinfo=UTC),
        lambda: Readings(cpu_temp=degrees[0]),
    )
    assert rules.reason_to_rest()
    degrees[0] = 86
    assert rules.reason_to_rest()
    degrees[0] = 85
    assert not rules.reason_to_rest()
    degrees[0] = 89
    assert not rules.reason_to_rest()
