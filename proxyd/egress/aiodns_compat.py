"""The private part of aiodns that the resolver relies on.

aiodns hides the c-ares channel, and has no call to make it forget its answers. Nothing else in this
room reads a name of aiodns that begins with an underscore. A test,
`tests/proxyd/egress/test_aiodns_compat.py`, checks it, and fails on any other release than this one
until a developer has compared `aiodns/__init__.py`.
"""

import aiodns

COMPARED_VERSION = "4.0.4"


class PrivateResolver(aiodns.DNSResolver):
    """A resolver whose channel can be made to forget."""

    def forget_answers(self) -> None:
        """Drop the answers that c-ares keeps; queries under way continue."""
        self._channel.reinit()
