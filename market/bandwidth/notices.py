"""The notices that daemons on one database send each other about sessions."""

from enum import StrEnum
from typing import Self

from msgspec import Struct

from market.base.states import SessionStatus


class Topic(StrEnum):
    """Topic of a notice.

    `WANTED`: a node has no bytes left to hand out. `CUT`: the session is about to leave `active`,
    and the sender waits for last reports. `OVER`: it has left `active`.
    """

    WANTED = "wanted"
    CUT = "cut"
    OVER = "over"


class Notice(Struct, frozen=True):
    """A notice about a session; `status` is where it is going, `node_id` the sender."""

    topic: Topic
    session_id: str
    status: SessionStatus
    node_id: str

    @property
    def text(self) -> str:
        """The notice as it is sent."""
        return f"{self.topic} {self.session_id} {self.status} {self.node_id}"

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Return the notice that a text is; None for one that this version does not know."""
        try:
            topic, session_id, status, node_id = text.split(" ")
            return cls(Topic(topic), session_id, SessionStatus(status), node_id)
        except ValueError:
            return None
