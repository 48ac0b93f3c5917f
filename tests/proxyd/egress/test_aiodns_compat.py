"""aiodns still has the undocumented behaviour that the resolver relies on."""

import pycares
from support.base.releases import assert_compared, assert_has

from proxyd.egress.aiodns_compat import COMPARED_VERSION, PrivateResolver

SHIM = "proxyd/egress/aiodns_compat.py"


def test_the_installed_release_is_the_one_that_was_compared() -> None:
    assert_compared("aiodns", COMPARED_VERSION, SHIM)


async def test_a_resolver_can_be_made_to_forget() -> None:
    resolver = PrivateResolver(["127.0.0.1"])
    assert_has("aiodns", SHIM, resolver, "_channel")
    assert isinstance(resolver._channel, pycares.Channel)
    resolver.forget_answers()
    await resolver.close()
