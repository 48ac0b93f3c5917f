"""A device as an exit: other people's connections leave through it, and its owner is paid.

It runs on machines of other people: Python 3.9 or later, its standard library, asyncio without the
calls that some systems lack, and on Linux also epoll and splice. Its agent trusts the daemon no
further than the limits of the device's owner.
"""
