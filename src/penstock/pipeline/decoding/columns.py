"""Makes the columns of a read from the positions of the fields of records. Names and types are
those of Spark's Kafka connector, so a query migrates by changing the name of the format.

Keys and values are made without a loop: the raw buffer becomes the data of a binary array whose
offsets are begin, end, begin, end…, and every second element of this array is dropped."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.pipeline.decoding.records import Fields, HeaderFields, Longs

HEADER_TYPE: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(HEADER_TYPE),
}
PLAIN: Final = tuple(name for name in TYPES if name != "headers")


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, TYPES[name]) for name in columns])


def binary_column(buffer: pa.Buffer, at: Longs, size: Longs) -> pa.Array:
    """Return slices of the buffer as a column. Slices must be ascending; a size of −1 is null."""
    count = len(at)
    if not count:
        return pa.array([], pa.binary())
    is_null = size < 0
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = at
    np.add(at, np.maximum(size, 0), out=edges[1::2], casting="unsafe")
    slices = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), buffer])
    every_other = np.arange(0, 2 * count, 2, dtype=np.int32)
    mask = is_null if is_null.any() else None
    return slices.take(pa.array(every_other, mask=mask))


def text_column(buffer: pa.Buffer, at: Longs, size: Longs) -> pa.Array:
    """Return slices as text, with Java's replacement character for bytes that are not UTF-8."""
    raw = binary_column(buffer, at, size)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [
            None if each is None else each.decode("utf-8", "replace") for each in raw.to_pylist()
        ]
        return pa.array(texts, pa.string())


def repeated_text(text: str, count: int) -> pa.Array:
    raw = text.encode()
    edges = np.arange(count + 1, dtype=np.int32) * len(raw)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(edges), pa.py_buffer(raw * count)]
    )


def repeated_number(number: int, count: int) -> pa.Array:
    return pa.array(np.full(count, number, np.int32))


def timestamp_column(at_ms: Longs) -> pa.Array:
    return pa.array(at_ms * 1_000).view(TYPES["timestamp"])


def headers_column(buffer: pa.Buffer, fields: Fields, headers: HeaderFields) -> pa.Array:
    """Return the headers of each record, or null if it has none, as in the Kafka connector."""
    counts = fields.headers_count
    edges = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=edges[1:])
    pairs = pa.StructArray.from_arrays(
        [
            text_column(buffer, headers.name_at, headers.name_size),
            binary_column(buffer, headers.value_at, headers.value_size),
        ],
        fields=list(HEADER_TYPE),
    )
    has_none: npt.NDArray[np.bool_] = counts == 0
    mask = pa.array(has_none) if has_none.any() else None
    return pa.ListArray.from_arrays(pa.array(edges), pairs, type=TYPES["headers"], mask=mask)
