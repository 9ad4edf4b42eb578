"""The topic names in a consumer's metadata, the only part that a coordinator reads.

    version i16 · count i32 · count x (length i16 · UTF-8) · further fields of the version

All versions begin like this. The names are needed only to reject the deletion of offsets in use,
and to let the offsets of topics without subscribers expire.
"""

import struct

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")
_LENGTH_BYTES = 2


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the names; None if this is not the metadata of a plain consumer."""
    if len(metadata) < _HEAD.size:
        return None
    version, count = _HEAD.unpack_from(metadata)
    # Every name has at least its length field: reject a larger count before looping over it.
    if version < 0 or not 0 <= count <= len(metadata) // _LENGTH_BYTES:
        return None
    names = set()
    position = _HEAD.size
    for _ in range(count):
        if position + _LENGTH_BYTES > len(metadata):
            return None
        (length,) = _LENGTH.unpack_from(metadata, position)
        position += _LENGTH_BYTES
        name = metadata[position : position + max(length, 0)]
        if length < 0 or len(name) < length:
            return None
        position += length
        try:
            names.add(name.decode())
        except UnicodeDecodeError:
            return None
    return frozenset(names)
