"""The list of further servers, as it is given on the command line."""

import pytest

from bench.rivals import RivalError, named


def test_a_command_keeps_its_placeholders_and_copies_its_files(tmp_path):
    path = tmp_path / "server.conf"
    path.write_text("port {port}\n")
    first, second = named(f"a=/bin/a -p {{port}}; b=/bin/b --config {{config:{path}}} 'x y'")
    assert (first.name, first.command, first.files) == ("a", ("/bin/a", "-p", "{port}"), {})
    assert second.command == ("/bin/b", "--config", "{folder}/config0", "x y")
    assert second.files == {"config0": "port {port}\n"}


@pytest.mark.parametrize("text", ["", " ; "])
def test_no_entry_is_no_server(text):
    assert named(text) == []


@pytest.mark.parametrize("text", ["name", "name=", "=command", "a=/bin/a {config:/no/such/file}"])
def test_an_unreadable_entry_is_an_error(text):
    with pytest.raises(RivalError):
        named(text)
