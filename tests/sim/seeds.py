"""The seeds of `make test`: the same ones each time, and all that have ever failed."""

FIXED = tuple(range(1, 61))

# Each failed once, with the reason beside it.
FAILED: dict[int, str] = {}
