from support.base.cases import cases

from proxyd.relay.first_answer import FirstAnswer

HELLO = b"\x16\x03\x01\x00\xc8\x01"


@cases(
    ("asked", "answer", "is_right"),
    [
        (HELLO, b"\x16\x03\x03\x00\x7a\x02", True),
        (HELLO, b"\x15\x03\x03\x00\x02\x02\x28", True),
        (HELLO, b"\x16", True),
        (HELLO, b"\x16\x04", False),
        (HELLO, b"HTTP/1.1 400 Bad Request", False),
        (HELLO, bytes(1000), False),
        (b"SSH-2.0-client", b"SSH-2.0-server", True),
        (b"GET / HTTP/1.1", b"HTTP/1.1 200 OK", True),
    ],
)
def test_the_answer_to_a_tls_client_is_tls(asked: bytes, answer: bytes, is_right: bool) -> None:
    wrong: list[int] = []
    right: list[bool] = []
    first = FirstAnswer(lambda: wrong.append(1), right.append)
    assert first.asked(asked)
    assert first.answered(answer) is is_right
    assert len(wrong) == (not is_right)
    assert right == ([asked is HELLO] if is_right else [])


def test_a_server_that_speaks_first_is_passed_on() -> None:
    assert FirstAnswer(None).answered(b"SSH-2.0-server")
