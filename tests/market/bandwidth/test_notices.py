"""Notices of daemons are parsed as they were written, and other texts are ignored."""

from support.base.cases import cases

from market.bandwidth.notices import Notice, Topic
from market.base.states import SessionStatus


@cases("topic", list(Topic))
@cases("status", list(SessionStatus))
def test_a_notice_is_read_as_it_was_written(topic: Topic, status: SessionStatus) -> None:
    notice = Notice(topic, "session", status, "node")
    assert Notice.read(notice.text) == notice


@cases("text", ["", "over", "over a b c", "later session active node", "over s ended n more"])
def test_an_unknown_text_is_no_notice(text: str) -> None:
    assert Notice.read(text) is None
