"""The look of the service: without settings it is the program's."""

from api.console import Console
from api.site.look import PLAIN, Logo, Look


def test_another_look_is_another_version_of_the_console() -> None:
    logos = [None, Logo("image/png", b"a"), Logo("image/png", b"b")]
    looks = [PLAIN, Look("Ada's"), Look(colour="#7a1fa2"), *(Look(logo=each) for each in logos[1:])]
    assert len({Console(look=look).digest for look in looks}) == len(looks)
    assert Console(look=PLAIN).digest == Console().digest


def test_colours_that_are_not_set_are_those_of_the_program() -> None:
    assert PLAIN.style == b""
    assert b"light-dark(#0b5cad, #ffffff)" in Look(dark_colour="#ffffff").style
