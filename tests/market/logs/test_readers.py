"""A reader of a log is woken by new bytes, here and from other daemons, within bounds."""

from contextlib import ExitStack

from market.base.bus import BETWEEN_DAEMONS, LOGS, Bus, notices
from market.base.errors import Code, MarketError
from market.logs.readers import STREAMS, Reader, ReaderBounds, Readers


def rested(reader: Reader) -> Reader:
    """Return a reader that has looked at everything."""
    reader.streams.clear()
    reader.is_stale = False
    return reader


async def test_a_reader_is_notified_only_of_its_own_job() -> None:
    readers = Readers(Bus())
    with readers.reading("a", "one") as mine, readers.reading("b", "two") as other:
        rested(mine)
        rested(other)
        readers.written("a", "err")
        assert await mine.wait(0)
        assert (mine.streams, mine.is_stale) == ({"err"}, False)
        assert not await other.wait(0)
        readers.catch_up()
        assert await mine.wait(0)
        assert await other.wait(0)
        assert mine.streams == set(STREAMS)
    assert len(readers) == 0
    readers.written("a", "out")


async def test_readers_are_bounded_each_and_all() -> None:
    readers = Readers(Bus(), ReaderBounds(total=3, per_user=2))

    def is_refused(user: str) -> bool:
        try:
            with readers.reading("a", user):
                return False
        except MarketError as error:
            return error.code is Code.TOO_BUSY

    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(readers.reading("a", "one"))
        assert is_refused("one")
        assert not is_refused("two")
        stack.enter_context(readers.reading("b", "two"))
        assert is_refused("two")
        assert len(readers) == 3
    assert not is_refused("one")


async def test_the_end_reaches_all_readers_and_later_ones() -> None:
    readers = Readers(Bus())
    with readers.reading("a", "one") as reader:
        readers.end()
        assert await reader.wait(0)
        assert reader.has_ended
    with readers.reading("a", "one") as late:
        assert late.has_ended


async def test_readers_in_other_daemons_are_woken() -> None:
    here, there = Bus(BETWEEN_DAEMONS), Bus()
    ours, theirs = Readers(here), Readers(there)
    with ours.reading("a", "u") as echo, theirs.reading("a", "u") as reader:
        rested(echo)
        rested(reader)
        ours.written("a", "out")
        ours.written("b", "err")
        [text] = notices(LOGS, here._origin, here._unsent[LOGS])
        assert await echo.wait(0)
        for bus in (here, there):
            bus.hear(text)
        assert await reader.wait(0)
        assert (reader.streams, reader.is_stale) == ({"out"}, False)
        assert not await echo.wait(0)
