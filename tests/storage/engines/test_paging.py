"""A page goes on behind an identifier; the first page needs no other request."""

import sqlite3

from support.base.clock import Clock

from market.base.ids import Identifiers
from storage.engines.paging import NEWEST_FIRST, behind, matches

PAGE = f"SELECT id FROM things WHERE id < ? ORDER BY id {NEWEST_FIRST} LIMIT 2"


def test_pages_follow_each_other_from_the_newest_to_the_oldest() -> None:
    identifiers = Identifiers(Clock().milliseconds)
    made = [identifiers.new() for _ in range(5)]
    pages, before = [], ""
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE things (id TEXT)")
        database.executemany("INSERT INTO things VALUES (?)", [(each,) for each in made])
        while page := [each for (each,) in database.execute(PAGE, (behind(before),))]:
            pages.append(page)
            before = page[-1]
    database.close()
    assert pages == [made[:2:-1], made[2:0:-1], made[:1]]


def test_a_value_is_compared_as_a_text_that_chooses_no_partial_index() -> None:
    assert matches("status", "wanted") == "status = CAST(:wanted AS TEXT)"
