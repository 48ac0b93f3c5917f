"""Logs as text: terminal controls are left out, and incomplete characters wait."""

import codecs
import re

# A longer sequence without an end is shown as text: it does not delay a log.
HELD_MAX_BYTES = 256

# ECMA-48: control sequences, strings with their end, and the rest of the escape sequences.
_ESCAPES = re.compile(
    rb"\x1b(?:"
    rb"\[[\x30-\x3f]*[\x20-\x2f]*[\x40-\x7e]"
    rb"|\][^\x07\x1b]*(?:\x07|\x1b\\)"
    rb"|[PX^_][^\x1b]*\x1b\\"
    rb"|[\x20-\x2f]*[\x30-\x4f\x51-\x57\x59\x5a\x5c\x60-\x7e]"
    rb")"
)
# The same without their ends.
_BEGUN = re.compile(
    rb"\x1b(?:\[[\x30-\x3f]*[\x20-\x2f]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[\x20-\x2f]*)\Z"
)
# Controls that move, ring or hide, and the eight-bit forms of the above; \t, \n and \r stay.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def text_of(data: bytes, *, is_last: bool) -> tuple[str, int]:
    """Return bytes of a log as text, and the number of these bytes.

    An incomplete character or sequence at the end waits for its rest.

    Args:
        data: bytes that begin with a whole character.
        is_last: whether no rest will come.
    """
    end = len(data)
    if not is_last:
        begun = _BEGUN.search(data, max(0, end - HELD_MAX_BYTES))
        end = begun.start() if begun else end
    # A sequence in the middle of a character ends that: only text behind the last one can wait.
    *parts, last = _ESCAPES.split(data[:end])
    text = "".join(part.decode(errors="replace") for part in parts)
    rest, taken = codecs.utf_8_decode(last, "replace", is_last or end < len(data))
    return _CONTROLS.sub("", text + rest), end - (len(last) - taken)
