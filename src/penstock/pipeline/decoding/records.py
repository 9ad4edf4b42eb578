"""Finds the fields of the records of all batches of a chunk at once.

``record_bounds`` finds the beginning and the end of each record; then each field is read for many
records together, without a Python object for each record. Fields are read in blocks of some
thousand records, because the data of a block stays in the processor's cache.

The input is not trusted: chains must end exactly where their batch ends, fields exactly where their
record ends, and offsets must lie within their batch. Otherwise ``Unreadable`` is raised for the
chunk, and ``decoder`` reads the batches one by one to find the invalid one.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.pipeline.decoding.record_bounds import plan_steps, walk
from penstock.pipeline.decoding.varints import Bytes, Longs, Unreadable, read_varints
from penstock.record.message import SYSTEM_HEADER
from penstock.record.record import HEADERS_PER_RECORD_MAX, encode_varint

RECORD_BYTES_MIN: Final = 7  # seven fields of a byte each
_SYSTEM_NAME: Final = encode_varint(len(SYSTEM_HEADER)) + SYSTEM_HEADER
_BLOCK: Final = 8_192  # records whose fields are read together


class Fields(NamedTuple):
    """Columns with one element for each record, in order. A size of −1 is null."""

    time_delta: Longs
    offset_delta: Longs
    key_at: Longs
    key_size: Longs
    value_at: Longs
    value_size: Longs
    headers_at: Longs  # of the first header
    headers_count: Longs
    end: Longs

    def kept(self, keep: npt.NDArray[np.bool_] | slice) -> "Fields":
        return Fields(*(each[keep] for each in self))


class HeaderFields(NamedTuple):
    """Columns with one element for each header of all records, in order."""

    name_at: Longs
    name_size: Longs
    value_at: Longs
    value_size: Longs


def read_fields(data: Bytes, starts: Longs, stops: Longs, counts: Longs, spans: Longs) -> Fields:
    """Return the fields of the records between ``starts`` and ``stops``, which have one element for
    each batch, as ``spans``, the last offset deltas, have. Raises Unreadable."""
    if (counts * RECORD_BYTES_MIN > stops - starts).any():
        raise Unreadable("more records than bytes for them")
    begin, end = walk(data, starts, stops, counts, is_dense=counts == spans + 1)
    total = len(begin)
    if total <= _BLOCK:
        fields = _read_block(data, begin, end)
    else:
        fields = Fields(*(np.empty(total, np.int64) for _ in Fields._fields))
        for at in range(0, total, _BLOCK):
            block = slice(at, at + _BLOCK)
            read = _read_block(data, begin[block], end[block])
            for whole, part in zip(fields, read, strict=True):
                whole[block] = part
    delta = fields.offset_delta
    if (delta < 0).any() or (delta > np.repeat(spans, counts)).any():
        raise Unreadable("an offset is outside its batch")
    return fields


def _read_block(data: Bytes, begin: Longs, end: Longs) -> Fields:
    """Return the fields of some records. ``begin``: positions after the lengths of the records."""
    time_delta, at = read_varints(data, begin + 1)  # after the attributes, which are unused
    offset_delta, at = read_varints(data, at)
    key_size, key_at = read_varints(data, at)
    value_size, value_at = read_varints(data, key_at + np.maximum(key_size, 0))
    headers_count, headers_at = read_varints(data, value_at + np.maximum(value_size, 0))
    if (
        (key_size < -1).any()
        or (value_size < -1).any()
        or (headers_count < 0).any()
        or (headers_count > HEADERS_PER_RECORD_MAX).any()
        or (key_at > end).any()
        or (key_size > end - key_at).any()
        or (value_at > end).any()
        or (value_size > end - value_at).any()
        or (headers_at > end).any()
        or ((headers_count == 0) & (headers_at != end)).any()
    ):
        raise Unreadable("the fields do not match the length of their record")
    return Fields(
        time_delta,
        offset_delta,
        key_at,
        key_size,
        value_at,
        value_size,
        headers_at,
        headers_count,
        end,
    )


def without_system_header(data: Bytes, fields: Fields, which: npt.NDArray[np.bool_]) -> Fields:
    """Remove the ``penstock`` header from the chosen records, where it is the first header."""
    rows = np.flatnonzero(which & (fields.headers_count > 0))
    at = fields.headers_at[rows]
    for number, octet in enumerate(_SYSTEM_NAME):
        is_same = (at + number < len(data)) & (
            data[np.minimum(at + number, len(data) - 1)] == octet
        )
        rows, at = rows[is_same], at[is_same]
    if not rows.size:
        return fields
    size, value_at = read_varints(data, at + len(_SYSTEM_NAME))
    after = value_at + np.maximum(size, 0)
    if (size > fields.end[rows] - value_at).any():
        raise Unreadable("the headers do not match the length of their record")
    headers_at, headers_count = fields.headers_at.copy(), fields.headers_count.copy()
    headers_at[rows] = after
    headers_count[rows] -= 1
    return fields._replace(headers_at=headers_at, headers_count=headers_count)


def read_headers(data: Bytes, fields: Fields) -> HeaderFields:
    """Return the headers of all records, in the way of ``record_bounds``. Raises Unreadable."""
    total = int(fields.headers_count.sum())
    found = HeaderFields(*(np.empty(total, np.int64) for _ in range(4)))
    with_some = np.flatnonzero(fields.headers_count)
    counts = fields.headers_count[with_some]
    plan = plan_steps(counts)
    at = fields.headers_at[with_some][plan.order]
    stop = fields.end[with_some][plan.order]
    for step, width in enumerate(plan.widths.tolist()):
        name_size, name_at = read_varints(data, at[:width])
        # Each size is compared with the rest before it is added: a sum could overflow.
        if (name_size < 0).any() or (name_size > stop[:width] - name_at).any():
            raise Unreadable("the headers do not match the length of their record")
        value_size, value_at = read_varints(data, name_at + name_size)
        if (value_size < -1).any() or (value_size > stop[:width] - value_at).any():
            raise Unreadable("the headers do not match the length of their record")
        after = value_at + np.maximum(value_size, 0)
        into = plan.place[:width] + step
        found.name_at[into] = name_at
        found.name_size[into] = name_size
        found.value_at[into] = value_at
        found.value_size[into] = value_size
        at[:width] = after
    if (at != stop).any():
        raise Unreadable("the headers do not match the length of their record")
    return found
