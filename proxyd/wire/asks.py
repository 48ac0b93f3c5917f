"""Messages between the processes of one machine about exits.

Devices attach to one process, which has the exits; the others ask it. All of them run the same
code, because one supervisor has forked them, so these messages have no versions. Each is sent
whole, over a socket that keeps messages apart. Addresses are texts.

    another process                        the process with the exits
    Ask: a target, and its buyer ----------->
         <------------------- Failed, or Reached with the work connection's descriptor
    Answered: how a target on port 443 has begun its answer -->
    Moved: how much its relays have carried, now and then -->
         <------------------- Cut: end this relay
    Ended: it is over, and its total of bytes -------------->

A number is that of an ask, and of the relay that has become of it; the asker counts them, and
never uses one twice.
"""

from typing import Final

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from proxyd.wire.events import Failure
from proxyd.wire.wants import Wants

# Of relays in one message, which is read into one buffer of 64 KiB: about 100 bytes each, and four
# times that where the names of places are long.
RELAYS_PER_MESSAGE: Final = 120

# A country, a state, a city, a network's number and a kind, as `exits.directory.Place` has them.
PlaceText = tuple[str, str, str, int, str]


class Ask(Struct, frozen=True, tag=1, array_like=True):
    """A request for a target through an exit; `is_name` is true if the host is a name.

    Or, if it `is_datagrams`, an exit that carries datagrams to any target; there is no host then.

    The session's own identifier, its buyer's, and its price in micro-USD per GB come with it.
    """

    number: int
    wants: Wants
    session_id: str
    user_id: str
    price_per_gb: int
    host: str
    is_name: bool
    port: int
    is_datagrams: bool = False


class GiveUp(Struct, frozen=True, tag=2, array_like=True):
    """An ask, or its relay, is not wanted any more."""

    number: int


class Relaying(Struct, frozen=True, array_like=True):
    """A relay that has begun before: through which device, where that is, and its bytes so far."""

    number: int
    device_id: str
    place: PlaceText
    size: int


class Resume(Struct, frozen=True, tag=3, array_like=True):
    """Running relays that the process with the exits does not know, since it was restarted."""

    relays: tuple[Relaying, ...]


class Moved(Struct, frozen=True, tag=4, array_like=True):
    """The bytes that relays have carried in all, by their numbers."""

    relays: tuple[tuple[int, int], ...]


class Ended(Struct, frozen=True, tag=5, array_like=True):
    """A relay is over, and has carried `size` bytes."""

    number: int
    size: int


class Answered(Struct, frozen=True, tag=9, array_like=True):
    """The first answer on port 443 has come: see `relay.first_answer`.

    `is_right` is false where a TLS client got something else, `is_tls` says that both are TLS.
    """

    number: int
    is_right: bool
    is_tls: bool


class Failed(Struct, frozen=True, tag=6, array_like=True):
    """No connection to the target is possible."""

    number: int
    failure: Failure


class Reached(Struct, frozen=True, tag=7, array_like=True):
    """The target is connected, by the connection whose descriptor comes with this message.

    `exit_address` is the address of the exit, `address` and `port` are visible to the target,
    `headers` go to the buyer, and `ports` are those that the exit takes: see `exits.dial.Via`.
    `bytes_per_second` is how fast it may go, 0 for any speed.
    """

    number: int
    device_id: str
    place: PlaceText
    exit_address: str
    address: str
    port: int
    headers: tuple[str, ...]
    ports: tuple[int, ...] = ()
    bytes_per_second: int = 0


class Cut(Struct, frozen=True, tag=8, array_like=True):
    """A relay has to end immediately."""

    number: int


Question = Ask | GiveUp | Resume | Moved | Answered | Ended
Answer = Failed | Reached | Cut

encode: Final = Encoder().encode
decode_question: Final = Decoder(Question).decode
decode_answer: Final = Decoder(Answer).decode
