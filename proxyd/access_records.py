"""The access records of a client's connection.

Structs, because the constructor of a named tuple is interpreted: 400 ns instead of 150. The module
is not compiled, because the compiler does not know the constructors of structs.
"""

from msgspec import Struct


class Access(Struct, frozen=True, gc=False):
    """Ended connection of a client that had shown credentials.

    `client` is its address, `host` and `port` its target ("" and 0 if it ended before that was
    known), `seconds` its duration. `exit` is the device that it went through, `exit_address` the
    address that the device has attached from; both "" for a connection from this machine. A dial
    that has failed has the devices that were ordered the target in `tried`, each with its address.
    """

    connection: int
    session_id: str
    client: str
    host: str
    port: int
    bytes_up: int
    bytes_down: int
    seconds: float
    reason: str
    exit: str = ""
    exit_address: str = ""
    tried: tuple[tuple[str, str], ...] = ()


class Reached(Struct, frozen=True, gc=False):
    """Connection of a client that has just reached its target, or relays datagrams from now on.

    The fields of `Access` mean the same here. `addresses` are the possible dialled addresses: one,
    or several where an exit has chosen among them; none where the exit looked the name up, or
    `host` is the address. `source_port` is the port that the target sees: ours, or by the word of
    the exit; 0 where it is unknown. `seen_address` is the address that the target sees by the word
    of the exit, if it is not `exit_address`.
    """

    connection: int
    session_id: str
    client: str
    protocol: str
    host: str
    port: int
    addresses: tuple[str, ...]
    source_port: int
    exit: str
    exit_address: str
    seen_address: str


class Sent(Struct, frozen=True, gc=False):
    """Datagrams to a destination, the first in an hour; `reached` has the destination.

    With `others` it has none: it is the number of datagrams to destinations without a record.
    """

    reached: Reached
    others: int = 0
