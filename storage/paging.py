"""How lists go on: behind an identifier, the newest first."""

# Identifiers are lower-case UUIDs, and every one of them sorts before this. A list from the newest
# on is asked for like any other part, so that one condition, which an index answers, does for both.
NEWEST = "g"

# How every list is ordered. PostgreSQL would otherwise take the primary key's own order for a short
# way to a user's newest rows, and walk past everybody else's; an index that begins with the user
# has its identifiers in this order, and the primary key has not. To SQLite it means plain DESC.
NEWEST_FIRST = "DESC NULLS LAST"


def behind(before: str) -> str:
    """Return what a list's identifiers are below: `before`, or if that is "" above all of them."""
    return before or NEWEST


def matches(column: str, name: str) -> str:
    """Return SQL for a column of text that has a value.

    Where a table has partial indexes on the column, SQLite looks at the value itself to see whether
    one of them will do, and prepares the statement anew each time; not so for a value that is cast.
    """
    return f"{column} = CAST(:{name} AS TEXT)"
