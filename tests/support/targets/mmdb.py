"""Files in MaxMind's format, of a few networks."""

import struct
from ipaddress import ip_network

MARKER = b"\xab\xcd\xefMaxMind.com"
MAP, TEXT, UINT16, UINT32, UINT64, ARRAY = 7, 2, 5, 6, 9, 11


def write(path, records, *, kind="Test", description="Made for a test", ip_version=6):
    """Write a file of records by network; IPv4 networks stand below `::/96`, as they do there."""
    tree, data, bits = [[None, None]], bytearray(), 128 if ip_version == 6 else 32
    for text, record in records.items():
        network = ip_network(text)
        length = network.prefixlen + (96 if network.version == 4 and ip_version == 6 else 0)
        number = int(network.network_address)
        _insert(tree, [number >> (bits - 1 - at) & 1 for at in range(length)], len(data))
        data += _encoded(record)
    metadata = {
        "node_count": (UINT32, len(tree)),
        "record_size": (UINT16, 32),
        "ip_version": (UINT16, ip_version),
        "database_type": kind,
        "languages": ["en"],
        "binary_format_major_version": (UINT16, 2),
        "binary_format_minor_version": (UINT16, 0),
        "build_epoch": (UINT64, 1_790_000_000),
        "description": {"en": description},
    }
    nodes = b"".join(struct.pack("!II", *(_pointer(each, tree) for each in node)) for node in tree)
    path.write_bytes(nodes + bytes(16) + bytes(data) + MARKER + _encoded(metadata))
    return str(path)


def _insert(tree, bits, offset):
    node = tree[0]
    for bit in bits[:-1]:
        if node[bit] is None:
            tree.append([None, None])
            node[bit] = tree[-1]
        node = node[bit]
    assert not isinstance(node[bits[-1]], list), "networks must not overlap"
    node[bits[-1]] = offset


def _pointer(child, tree):
    if child is None:
        return len(tree)
    if isinstance(child, int):
        return len(tree) + 16 + child
    return next(number for number, node in enumerate(tree) if node is child)


def _encoded(value):
    if isinstance(value, dict):
        pairs = (_encoded(each) for pair in value.items() for each in pair)
        return _control(MAP, len(value)) + b"".join(pairs)
    if isinstance(value, list):
        return _control(ARRAY, len(value)) + b"".join(map(_encoded, value))
    if isinstance(value, str):
        return _control(TEXT, len(value.encode())) + value.encode()
    kind, number = value if isinstance(value, tuple) else (UINT32, value)
    size = (number.bit_length() + 7) // 8
    return _control(kind, size) + number.to_bytes(size, "big")


def _control(kind, size):
    if size < 29:
        first, rest = size, b""
    else:
        assert size < 285
        first, rest = 29, bytes([size - 29])
    if kind > 7:
        return bytes([first, kind - 7]) + rest
    return bytes([kind << 5 | first]) + rest
