"""Program that a User-Agent names."""

from support.base.cases import cases

from api.http.programs import program


@cases(
    ("user_agent", "name"),
    [
        (
            "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
            "Firefox, Linux",
        ),
        (
            "Mozilla/5.0 (Windows NT 10.0) Chrome/140.0 Safari/537.36 Edg/140.0",
            "Edge, Windows",
        ),
        (
            "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1 Safari/604.1",
            "Safari, iOS",
        ),
        ("curl/8.5.0", "curl"),
        ("something else" * 1000, ""),
        ("", ""),
    ],
)
def test_a_program_is_named_with_its_system(user_agent: str, name: str) -> None:
    assert program(user_agent) == name
