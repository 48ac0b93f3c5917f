"""The progress of a connection: slow clients, and stalled ones."""

from api.http.progress import PROGRESS_BYTES, Incoming, Outgoing

RATE = 4096  # bytes a second that a client takes at least


class Writer:
    """Stands for aiohttp's writer of one answer."""

    def __init__(self, size: int) -> None:
        self.output_size = size


def test_a_body_comes_on_by_a_bounded_number_of_bytes_at_a_time() -> None:
    incoming = Incoming()
    assert not incoming.is_progress(PROGRESS_BYTES - 1)
    assert incoming.is_progress(1)
    assert not incoming.is_progress(1)
    assert incoming.is_progress(10 * PROGRESS_BYTES)


def test_sent_bytes_are_the_written_bytes_less_the_waiting_ones() -> None:
    outgoing = Outgoing()
    outgoing.begin(Writer(1_000))
    assert not outgoing.has_left_more(1_000)
    assert outgoing.has_left_more(400)
    assert not outgoing.has_left_more(400)
    outgoing.begin(Writer(500))
    assert not outgoing.has_left_more(900)
    assert outgoing.has_left_more(0)


def test_a_client_that_takes_nothing_is_overdue_after_its_patience() -> None:
    outgoing = Outgoing()
    outgoing.begin(Writer(100_000))
    outgoing.watch(10.0, 100_000)
    assert not outgoing.is_overdue(12.0, 2.0, RATE)
    assert outgoing.is_overdue(12.1, 2.0, RATE)


def test_bytes_that_a_client_takes_earn_it_a_second_at_a_rate() -> None:
    outgoing = Outgoing()
    outgoing.begin(Writer(100_000))
    outgoing.watch(10.0, 100_000)
    assert outgoing.has_left_more(100_000 - 2 * RATE)
    assert not outgoing.is_overdue(14.0, 2.0, RATE)
    assert outgoing.is_overdue(14.1, 2.0, RATE)


def test_a_client_that_has_taken_all_due_bytes_begins_anew() -> None:
    outgoing = Outgoing()
    outgoing.begin(Writer(100))
    outgoing.watch(0.0, 100)
    outgoing.begin(Writer(100))
    assert outgoing.has_left_more(100)
    assert not outgoing.is_overdue(50.0, 2.0, RATE)
    assert not outgoing.is_overdue(52.0, 2.0, RATE)
    assert outgoing.is_overdue(52.1, 2.0, RATE)
