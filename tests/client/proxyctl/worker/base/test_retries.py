from proxyctl.worker.base.retries import MOST_SECONDS, Retries


def test_waits_grow_to_a_minute_and_begin_anew() -> None:
    retries = Retries()
    waits = [retries.failed() for _ in range(10)]
    assert 0.75 <= waits[0] <= 1.25
    assert MOST_SECONDS * 0.75 <= waits[-1] <= MOST_SECONDS * 1.25
    retries.succeeded()
    assert retries.failed() <= 1.25
    assert retries.failed(at_least=200) >= 150
