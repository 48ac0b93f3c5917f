"""The words for how a connection ended: operators search for them, so they stay."""

import json

from proxyd.access import ENDING_OF_FAILURE, ENDING_OF_REFUSAL, Ending
from proxyd.wire.events import Failure, Refusal

WORDS = {
    *("ended", "reset", "idle", "exhausted", "cut", "client_left", "violation", "timed_out"),
    *("wrong", "over", "limited", "too_many_connections", "unavailable", "parameters"),
    *("general", "not_allowed", "network_unreachable", "host_unreachable", "refused"),
    *("command_not_supported", "no_exit", "exit_lost"),
}


def test_the_words_are_those_that_operators_know() -> None:
    assert set(Ending) == WORDS


def test_every_refusal_and_failure_has_its_word() -> None:
    for table, reasons in ((ENDING_OF_REFUSAL, Refusal), (ENDING_OF_FAILURE, Failure)):
        assert {reason: str(ending) for reason, ending in table.items()} == {
            reason: reason.name.lower() for reason in reasons
        }


def test_a_record_and_a_label_hold_the_bare_word() -> None:
    assert json.dumps(Ending.TIMED_OUT) == '"timed_out"'
    assert f"{Ending.CUT}" == str(Ending.CUT) == "cut"
