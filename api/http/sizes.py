"""The largest body that a type can have, so that no route reads more than it can use."""

from functools import cache

from msgspec import Struct, inspect

KIB = 1024
# So a text that is somewhat too long is refused by the name of its field, not as a whole body.
LEAST_BYTES = 128 * KIB
CHARACTER_BYTES = 6  # a character written as \uXXXX; in UTF-8 it has at most four
TEXT_CHARACTERS = 1024  # of a text whose type has no bound, and of the types that it converts to
SCALAR_BYTES = 64


@cache
def largest(kind: type[Struct]) -> int | None:
    """Return the bytes that a body of a type may have, in whole KiB; None for an unbounded type.

    That leaves some room for spaces and for unknown fields.
    """
    size = _size(inspect.type_info(kind))
    if size is None:
        return None
    return max((-(-size // KIB) + 1) * KIB, LEAST_BYTES)


def _size(kind: inspect.Type) -> int | None:
    size: int | None = SCALAR_BYTES
    if isinstance(kind, (inspect.StructType, inspect.DataclassType)):
        names = sum(len(each.encode_name) + 4 for each in kind.fields)
        sizes = [_size(each.type) for each in kind.fields]
        size = None if None in sizes else names + sum(filter(None, sizes))
    elif isinstance(kind, inspect.Metadata):
        size = _size(kind.type)
    elif isinstance(kind, inspect.UnionType):
        sizes = [_size(each) for each in kind.types]
        size = None if None in sizes else max(filter(None, sizes))
    elif isinstance(kind, inspect.StrType):
        size = CHARACTER_BYTES * (kind.max_length or TEXT_CHARACTERS) + 2
    elif isinstance(kind, (inspect.ListType, inspect.VarTupleType)):
        item = _size(kind.item_type)
        size = None if item is None or kind.max_length is None else (item + 1) * kind.max_length
    elif isinstance(kind, inspect.LiteralType):
        size = max(CHARACTER_BYTES * len(str(each)) for each in kind.values) + 2
    elif isinstance(kind, (inspect.DictType, inspect.AnyType, inspect.RawType)):
        size = None
    return size
