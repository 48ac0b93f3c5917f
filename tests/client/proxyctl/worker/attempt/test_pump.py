"""The thread that sends the log of an attempt: new bytes leave without a wait."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

from support.base.waiting import until_true

from proxyctl.worker.attempt.log_sender import LogSender
from proxyctl.worker.attempt.pump import Pump
from proxyctl.worker.base import names


def test_the_first_bytes_of_a_log_are_sent_without_a_wait(tmp_path: Path) -> None:
    sent: list[tuple[str, int, bytes]] = []
    looked = threading.Event()

    def post(stream: str, offset: int, data: bytes) -> dict[str, Any]:
        sent.append((stream, offset, data))
        return {"offset": offset + len(data), "next_after_ms": 0}

    def has_sent(number: int) -> bool:
        return len(sent) == number

    class Sender(LogSender):
        def send(self) -> bool:
            try:
                return super().send()
            finally:
                looked.set()

    # Only a ring can wake it.
    pumping = Pump("one", Sender(tmp_path, post), lambda _: None, look_seconds=3_600)
    assert looked.wait(60)  # it has found nothing, and waits
    out = tmp_path / names.LOGS["out"]
    for number, line in enumerate((b"first\n", b"second\n")):
        with out.open("ab") as file:
            file.write(line)
        pumping.ring()
        until_true(partial(has_sent, number + 1), "it is sent")
    pumping.close()
    assert sent == [("out", 0, b"first\n"), ("out", 6, b"second\n")]
