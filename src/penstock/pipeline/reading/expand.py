"""Implements the option ``decode``: reads records that contain tables as rows of these tables.

    usage       ``__usage``: MessagePack columns, one row for each row of the record's table
    audit       ``__audit``: JSON, one row for each record, with the bytes that are hashed
    deliveries  ``__deliveries``: MessagePack columns, one row for each delivery
    arrow       values that are Arrow IPC streams; the read must state their schema

An undecodable usage, audit or deliveries record becomes one row with its partition, its offset and
the reason in ``error``. A usage record without rows becomes one row of the kind ``none``, because
its time and flush number are needed too."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.pipeline.arrow_map import batch_of
from penstock.pipeline.client.option_values import OptionInvalid
from penstock.pipeline.client.options import ReadOptions
from penstock.pipeline.decoding import decoder as made
from penstock.pipeline.decoding.packed_columns import Columns, UnusualRecords, listed, read_columns
from penstock.wire.facts import audit, deliveries, usage

NONE: Final = "none"  # kind of the row that represents a usage record without rows
_PLACED: Final = ("partition", "offset", "value")
_WHERE: Final = [("partition", pa.int32()), ("offset", pa.int64())]

_USAGE_NUMBERS: Final = ("flush", "minute_ms", "written_at_ms")
_USAGE_HEAD: Final = ("node", "incarnation", *_USAGE_NUMBERS)
_LONG_END: Final = 1 << 63
USAGE_SCHEMA: Final = pa.schema(
    [
        *_WHERE,
        ("node", pa.string()),
        ("incarnation", pa.string()),
        *((name, pa.int64()) for name in _USAGE_NUMBERS),
        *((name, pa.string()) for name in usage.TEXTS),
        *((name, pa.int64()) for name in usage.NUMBERS),
        ("error", pa.string()),
    ]
)
_AUDIT_FIELDS: Final = tuple(
    name for name in audit.AuditRecord.__struct_fields__ if name not in ("v", "params")
)
_AUDIT_NUMBERS: Final = ("seq", "at_ms")
AUDIT_SCHEMA: Final = pa.schema(
    [
        *_WHERE,
        *((name, pa.int64() if name in _AUDIT_NUMBERS else pa.string()) for name in _AUDIT_FIELDS),
        ("params", pa.string()),
        ("value", pa.binary()),
        ("error", pa.string()),
    ]
)
# A row of ``__deliveries`` has the place of the pushed message, and also the place of its record.
_RENAMED: Final = {name: f"source_{name}" for name in ("topic", "partition", "offset")}
_DELIVERY_TYPES: Final = {
    **dict.fromkeys(deliveries.DeliveryRow.__struct_fields__, pa.int64()),
    **dict.fromkeys(deliveries.TEXTS, pa.string()),
    **dict.fromkeys(deliveries.FLAGS, pa.bool_()),
    "partition": pa.int32(),
}
_DELIVERY_HEAD: Final = ("node", "incarnation", "flush", "written_at_ms")
DELIVERIES_SCHEMA: Final = pa.schema(
    [
        *_WHERE,
        ("node", pa.string()),
        ("incarnation", pa.string()),
        ("flush", pa.int64()),
        ("written_at_ms", pa.int64()),
        ("left_out", pa.int64()),  # of the record, in its first row; 0 in the others
        ("row_index", pa.int32()),  # in the record
        *((_RENAMED.get(name, name), kind) for name, kind in _DELIVERY_TYPES.items()),
        ("error", pa.string()),
    ]
)
_MS_MAX: Final = 253_402_300_800_000  # the year 10000; later times are invalid


class Expansion(NamedTuple):
    schema: pa.Schema  # of the output
    reading: ReadOptions  # with the columns of the input
    expand: Callable[[pa.RecordBatch], pa.RecordBatch]


def expansion_for(options: ReadOptions, schema: pa.Schema | None = None) -> Expansion:
    if not options.decode:
        return Expansion(made.arrow_schema(options.columns), options, lambda batch: batch)
    placed = replace(options, columns=_PLACED)
    if options.decode == "arrow":
        if schema is None:
            raise OptionInvalid("option decode=arrow needs the schema of the rows: call .schema(…)")
        return Expansion(schema, placed, lambda batch: _expand_arrow(batch, schema))
    if options.decode not in KNOWN:
        names = ", ".join([*KNOWN, "arrow"])
        raise OptionInvalid(f"option decode must be one of {names}, not '{options.decode}'")
    out, expand = KNOWN[options.decode]
    return Expansion(out, placed, expand)


def _values(batch: pa.RecordBatch) -> Iterable[tuple[int, int, bytes | None]]:
    return zip(*(batch.column(name).to_pylist() for name in _PLACED), strict=True)


def expand_usage(batch: pa.RecordBatch) -> pa.RecordBatch:
    try:
        return _usage_at_once(batch)
    except (UnusualRecords, usage.UsageUnreadable):
        return _usage_one_by_one(batch)


def _usage_at_once(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Decode all records together. Raises an exception if a record must be decoded separately."""
    blocks = [usage.FORM.block(value or b"") for value in batch.column("value").to_pylist()]
    if any(max(b.flush, b.minute_ms, b.written_at_ms) >= _LONG_END for b in blocks):
        raise UnusualRecords(())
    columns = [each.columns for each in blocks]
    found = read_columns(columns, texts=usage.TEXTS, numbers=usage.NUMBERS)
    return _usage_rows(batch, blocks, found)


def _usage_one_by_one(batch: pa.RecordBatch) -> pa.RecordBatch:
    parts = []
    for number, value in enumerate(batch.column("value").to_pylist()):
        head, columns, error = None, _ONE_ROW, None
        try:
            head = usage.decode(value or b"")
            _check_numbers(head)
            columns = head.columns
        except usage.UsageUnreadable as unreadable:
            head, error = None, str(unreadable)
        found = listed(columns, texts=usage.TEXTS, numbers=usage.NUMBERS)
        parts.append(_usage_rows(batch.slice(number, 1), [head], found, error))
    return pa.concat_batches(parts) if parts else batch_of([], USAGE_SCHEMA)


def _usage_rows(
    batch: pa.RecordBatch, heads: Sequence[object], found: Columns, error: str | None = None
) -> pa.RecordBatch:
    arrays = {**found.texts, **{name: pa.array(each) for name, each in found.numbers.items()}}
    record_of = np.repeat(np.arange(len(heads)), found.counts)
    empty = np.flatnonzero(found.counts == 0)
    if empty.size:
        # All empty records get the same row, which is appended once and copied from there.
        where = np.cumsum(found.counts)[empty]
        order = pa.array(np.insert(np.arange(len(record_of)), where, len(record_of)))
        record_of = np.insert(record_of, where, empty)
        for name in (*usage.TEXTS, *usage.NUMBERS):
            cell = pa.array(getattr(_ONE_ROW, name), arrays[name].type)
            arrays[name] = pa.concat_arrays([arrays[name], cell]).take(order)
    indexes = pa.array(record_of)
    for name in ("partition", "offset"):
        arrays[name] = batch.column(name).take(indexes)
    for name in _USAGE_HEAD:
        of_records = [getattr(each, name, None) for each in heads]
        arrays[name] = pa.array(of_records, USAGE_SCHEMA.field(name).type).take(indexes)
    arrays["error"] = pa.array([error] * len(indexes), pa.string())
    return pa.RecordBatch.from_arrays([arrays[n] for n in USAGE_SCHEMA.names], schema=USAGE_SCHEMA)


def _check_numbers(facts: usage.UsageFacts) -> None:
    """Raise UsageUnreadable for a number that does not fit in a signed 64-bit integer."""
    heads = {name: [getattr(facts, name)] for name in _USAGE_NUMBERS}
    columns = {name: getattr(facts.columns, name) for name in usage.NUMBERS}
    for name, numbers in (heads | columns).items():
        if numbers and not -_LONG_END <= min(numbers) <= max(numbers) < _LONG_END:
            raise usage.UsageUnreadable(f"{name} has a number that does not fit in 64 bits")


_CELLS: Final[dict[str, Any]] = {
    **{name: [""] for name in usage.TEXTS},
    **{name: [0] for name in usage.NUMBERS},
    "kind": [NONE],
}
_ONE_ROW: Final = usage.UsageColumns(**_CELLS)


def expand_audit(batch: pa.RecordBatch) -> pa.RecordBatch:
    rows: list[Sequence[object]] = []
    for partition, offset, value in _values(batch):
        try:
            record = audit.decode(value or b"")
            params = msgspec.json.encode(record.params).decode()
        except (audit.AuditUnreadable, UnicodeError) as error:
            nothing = [None] * (len(_AUDIT_FIELDS) + 1)
            rows.append((partition, offset, *nothing, value, str(error)))
        else:
            fields = [getattr(record, name) for name in _AUDIT_FIELDS]
            rows.append((partition, offset, *fields, params, value, None))
    return batch_of(rows, AUDIT_SCHEMA)


def expand_deliveries(batch: pa.RecordBatch) -> pa.RecordBatch:
    parts = []
    for partition, offset, value in _values(batch):
        try:
            parts.append(_delivery_rows(partition, offset, deliveries.decode(value or b"")))
        except (deliveries.DeliveriesUnreadable, pa.ArrowInvalid, OverflowError) as error:
            nothing = [None] * (len(DELIVERIES_SCHEMA) - len(_WHERE) - 1)
            row = (partition, offset, *nothing, " ".join(str(error).split())[:200])
            parts.append(batch_of([row], DELIVERIES_SCHEMA))
    return pa.concat_batches(parts) if parts else batch_of([], DELIVERIES_SCHEMA)


def _delivery_rows(partition: int, offset: int, facts: deliveries.DeliveryFacts) -> pa.RecordBatch:
    """Return the rows of one record. Raises an exception if a number is out of range."""
    count = len(facts.columns)
    if not all(0 <= at_ms < _MS_MAX for at_ms in facts.columns.at_ms):
        raise deliveries.DeliveriesUnreadable("a row has an invalid time")
    made: dict[str, Sequence[object]] = {
        "partition": [partition] * count,
        "offset": [offset] * count,
        **{name: [getattr(facts, name)] * count for name in _DELIVERY_HEAD},
        "left_out": [facts.left_out, *[0] * (count - 1)][:count],
        "row_index": range(count),
        "error": [None] * count,
    }
    for name in _DELIVERY_TYPES:
        made[_RENAMED.get(name, name)] = getattr(facts.columns, name)
    arrays = [pa.array(made[each.name], each.type) for each in DELIVERIES_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=DELIVERIES_SCHEMA)


class NotArrow(ValueError):
    """Raised if a value is not an Arrow stream of the given schema."""


def _expand_arrow(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    parts: list[pa.RecordBatch] = []
    for partition, offset, value in _values(batch):
        try:
            with pa.ipc.open_stream(value or b"") as stream:
                for each in stream:
                    arrays = [each.column(field.name).cast(field.type) for field in schema]
                    parts.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        except (pa.ArrowException, KeyError, OSError) as error:
            why = " ".join(str(error).split())[:200]
            raise NotArrow(
                f"the record at partition {partition}, offset {offset} is not an Arrow stream of"
                f" the given schema: {why}"
            ) from None
    return pa.concat_batches(parts) if parts else batch_of([], schema)


KNOWN: Final[Mapping[str, tuple[pa.Schema, Callable[[pa.RecordBatch], pa.RecordBatch]]]] = {
    "usage": (USAGE_SCHEMA, expand_usage),
    "audit": (AUDIT_SCHEMA, expand_audit),
    "deliveries": (DELIVERIES_SCHEMA, expand_deliveries),
}
