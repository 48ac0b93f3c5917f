"""Work connections under TLS, from the side of an exit that does with them whatever it likes."""

import asyncio
import ssl
from ipaddress import ip_address
from typing import Any

from support.exit_device import Device, Port, ignore
from support.waiting import until

from proxyctl.protocol.frames import SECURE, SECURE_TICKETS, Dial, Dialled, Outcome, Preface
from proxyd.wire.wants import Wants

LOOPBACK = ip_address("127.0.0.1")


class Somebody:
    """Who pays."""

    id = "session"
    user_id = "buyer"
    price_per_gb = 1_000_000


class Suspicions:
    """Hears of what no honest exit does."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def admit(self, attached: Any) -> None: ...

    def suspect(self, _attached: Any, kind: str, _evidence: str) -> None:
        self.kinds.append(kind)


async def parked_under_tls(port: Port, device: Device) -> asyncio.StreamWriter:
    """Have one work connection wait under TLS; nothing is ever read from it."""
    (attached,) = port.listener._by_device.values()
    assert attached.secure is not None
    device.parks, device.obey = False, ignore
    attached.secure.open()
    await until(lambda: any(each >= SECURE_TICKETS for each in device.tickets), "it has tickets")
    number = next(each for each in device.tickets if each >= SECURE_TICKETS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port, ssl=context)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    assert device.welcome is not None
    ticket = device.tickets.pop(number)
    writer.write(Preface(device.welcome.attachment, number, ticket).encode())
    await until(lambda: len(attached.secure or ()) == 1, "it waits")
    return writer


async def dialled(port: Port, device: Device, outcomes: list[Any]) -> Any:
    """Have the exit be asked for a target under TLS."""
    wants = Wants(secure=True)
    dial = port.exits.dial(
        wants, Somebody(), LOOPBACK, 80, lambda *outcome: outcomes.append(outcome)
    )
    await until(lambda: bool(device.dials), "it has its order")
    return dial


def connected(dial: Dial) -> Dialled:
    return Dialled(dial.number, Outcome.CONNECTED, 0, None, 0)


async def test_an_answer_that_comes_late_is_no_lie(port: Port) -> None:
    device = await port.device(features=(SECURE,))
    watch = port.listener.watch = Suspicions()  # type: ignore[assignment]
    writer = await parked_under_tls(port, device)
    dial = await dialled(port, device, [])
    dial.cancel()
    (attached,) = port.listener._by_device.values()
    heard = attached.heard_at
    for each in device.dials:
        device.send(connected(each))
    await until(lambda: attached.heard_at > heard, "it is heard")
    assert watch.kinds == []
    device.send(connected(Dial(10**6, (LOOPBACK,), 80)))
    await until(lambda: watch.kinds == ["unasked"], "what nobody asked for is one")
    writer.transport.abort()
