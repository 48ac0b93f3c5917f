"""The order of lists: pages from the newest row on, and due rows in turns of their users.

A list is a range of one index, and an unused filter is not in the statement. So no request and no
sweep reads more rows because the market has grown; `tests/storage/test_plans.py` fills two markets
and compares. Only work on everything reads everything, once: the audit, the ledger's totals each
minute, the search for abandoned jobs (running jobs, every 15 s), and a start (open leases and
active sessions).
"""

# Identifiers are lower-case UUIDs of version 7: they sort by time, and all of them sort before this
# text. With it "newest first" is the same statement as "older than that one", with the same index.
NEWEST = "g"
NEWEST_NUMBER = 2**62  # the same for rows that a number orders, such as those of a log

# How every page is ordered. Plain DESC would let PostgreSQL walk the primary key backwards, past
# everybody else's rows, to a user's newest ones; NULLS LAST is an order that only the index which
# begins with the user has. To SQLite it means plain DESC.
NEWEST_FIRST = "DESC NULLS LAST"

# Users take turns among this number of the oldest due rows, which bounds the cost of a sweep. By
# default one user may have a tenth of that open (`limits.sessions_per_user`,
# `limits.jobs_per_user`).
TURNS_MAX_ROWS = 10_000


def behind(before: str) -> str:
    """Return the upper bound of a page's identifiers: `before`, or `NEWEST` for ""."""
    return before or NEWEST


def matches(column: str, name: str) -> str:
    """Return SQL for "this text column equals the value `:name`".

    The CAST is for tables with partial indexes on the column: without it SQLite looks at the value
    to see whether one of them will do, and so prepares the statement anew for each value.
    """
    return f"{column} = CAST(:{name} AS TEXT)"


def in_turns(table: str, *, by: str, due: str) -> str:
    """Return SQL for the identifiers of due rows, at most `:limit`, their users taking turns.

    First the oldest row of each user, then everybody's second, and so on: a user with thousands of
    due rows does not hold up the others.

    Args:
        table: has the columns `id`, `user_id` and `by`.
        by: the column that says how old a row is.
        due: the condition, which an index over `by` should answer.
    """
    return f"""
        SELECT id FROM (
            SELECT id, {by}, ROW_NUMBER() OVER (PARTITION BY user_id ORDER BY {by}) AS turn
            FROM (
                SELECT id, user_id, {by} FROM {table}
                WHERE {due}
                ORDER BY {by}
                LIMIT {TURNS_MAX_ROWS}
            ) AS oldest
        ) AS in_turns
        ORDER BY turn, {by}
        LIMIT :limit
    """
