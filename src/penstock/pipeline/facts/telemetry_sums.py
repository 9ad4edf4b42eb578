"""Sums up records of ``__telemetry`` by minute, and these sums by hour or day, in the executors of
the job ``telemetry``. Rows with equal ``KEYS`` become one row, with the sums of counters, the
maxima or minima of gauges, and merged histograms. So a rollup of rollups, in any order, equals one
rollup of all rows.

Two kinds of rows do not come from nodes: a ``source`` row has the end offset of a batch in one
partition; a ``reject`` row has the number of records that could not be read, and the reason.

A group's lag on a partition is computed from committed offsets and log ends of the last minutes:
``seconds`` is how long ago the log ended at the group's committed offset, interpolated between two
moments. If the log was already longer at the first moment, the rate of appends gives an estimate.

A queue, partition or node is hot if it has a large *share* of the total, or if it is an *outlier*,
measured by the median and the median absolute deviation, which a few hot names hardly change. If
most rates are equal, any difference would be an outlier, so an outlier's rate must also be several
times the median."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.pipeline.arrow_map import Folding
from penstock.pipeline.decoding.packed_columns import (
    Columns,
    UnusualRecords,
    listed,
    read_columns,
    read_together,
    values_in,
)
from penstock.pipeline.decoding.records import Longs
from penstock.pipeline.sketch import merge_groups
from penstock.wire.facts import telemetry as wire

MINUTE_MS: Final = 60_000
SOURCE, REJECT = "source", "reject"
FOLD_ROWS: Final = 200_000  # collected by a task before it merges them
REASONS_MAX: Final = 100  # for unreadable records; the rest is "others"
_MS_MAX: Final = 253_402_300_800_000  # the year 10000; later times are invalid
_NUMBER_END: Final = 1 << 53  # sums of thousands of such numbers still fit in 64 bits
_PARTITION_END: Final = 1 << 31
_COLUMN_NUMBERS: Final = (*wire.NUMBERS, "partition")
_EMPTY: Final = msgspec.Raw(b"\x90")
_hists = msgspec.msgpack.Decoder(list[list[int]])

_TEXTS: Final = ("kind", "node", "account", "region", "resource", "op", "group")
KEYS: Final = ("at", *_TEXTS, "partition")
SUMS: Final = (
    "requests", "errors", "messages", "bytes_in", "bytes_out", "cpu_ms", "covered_ms", "samples",
)  # fmt: skip
MAXES: Final = {
    "depth_max": "depth",
    "in_flight_max": "in_flight",
    "oldest_age_ms_max": "oldest_age_ms",
    "log_start_max": "log_start",
    "log_end_max": "log_end",
    "committed_max": "committed",
    "size_bytes_max": "size_bytes",
    "rss_bytes_max": "rss_bytes",
}
MINS: Final = {
    "log_end_min": "log_end",
    "committed_min": "committed",
    "disk_free_bytes_min": "disk_free_bytes",
}
_NUMBERS: Final = (*SUMS, *MAXES, *MINS)
OUT: Final = pa.schema(
    [
        ("at", pa.timestamp("us", tz="UTC")),
        *((name, pa.string()) for name in _TEXTS),
        ("partition", pa.int32()),
        *((name, pa.int64()) for name in _NUMBERS),
        ("hist", pa.list_(pa.int64())),
    ]
)


def folded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge rows with equal ``KEYS``. All rows with the same keys must be in the same task."""
    folding = Folding(fold, FOLD_ROWS)
    for batch in batches:
        folding.add(pa.Table.from_batches([batch.cast(OUT)]))
    yield from folding.result(OUT).combine_chunks().to_batches()


def fold(table: pa.Table) -> pa.Table:
    table = table.combine_chunks()
    if not table.num_rows:
        return OUT.empty_table()
    numbered = table.append_column("row", pa.array(np.arange(table.num_rows)))
    aggregates = [(name, "sum") for name in SUMS]
    aggregates += [(name, "max") for name in MAXES] + [(name, "min") for name in MINS]
    # One thread, so that groups are always in the order of their first rows.
    grouped = numbered.group_by(list(KEYS), use_threads=False).aggregate(
        [*aggregates, ("row", "list")]
    )
    columns = [grouped.column(name) for name in KEYS]
    columns += [grouped.column(f"{name}_{how}") for name, how in aggregates]
    hists = _merged(table.column("hist"), grouped.column("row_list"))
    return pa.table([*columns, hists], schema=OUT)


def _merged(hists: pa.ChunkedArray, rows: pa.ChunkedArray) -> pa.Array:
    of_rows = rows.combine_chunks()
    counts = np.asarray(of_rows.value_lengths(), np.int64)
    groups = np.empty(len(hists), np.int64)
    groups[np.asarray(of_rows.flatten(), np.int64)] = np.repeat(np.arange(len(counts)), counts)
    lists = hists.combine_chunks().fill_null([])
    lengths = np.asarray(lists.value_lengths(), np.int64)
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = np.asarray(lists.flatten(), np.int64)
    ends, merged = merge_groups(offsets, values, groups, len(counts))
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(merged))


_EMPTY_ROW: Final[dict[str, Any]] = {
    **dict.fromkeys(_TEXTS, ""),
    **dict.fromkeys(_NUMBERS, 0),
    "partition": wire.NO_PARTITION,
    "hist": [],
}


_Record = tuple[wire.TelemetryBlock, bytes]  # with its encoded value


def by_minute(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert records (partition, offset, value) to sums by minute, in the schema ``OUT``."""
    sums = Folding(fold, FOLD_ROWS)
    ends, rejects = Counter[int](), Counter[str]()
    newest_ms = 0

    def reject(reason: str) -> None:
        rejects[reason[:200] if len(rejects) < REASONS_MAX else "others"] += 1

    def accepted() -> Iterator[_Record]:
        nonlocal newest_ms
        for partition, offset, value in values_in(batches):
            ends[partition] = max(ends[partition], offset + 1)
            try:
                block = wire.FORM.block(value)
            except wire.TelemetryUnreadable as error:
                reject(str(error))
                continue
            if 0 <= block.from_ms <= block.written_at_ms < _MS_MAX:
                newest_ms = max(newest_ms, block.written_at_ms)
                yield block, value
            else:
                reject("the record has an invalid time")

    def sum_one(record: _Record) -> None:
        try:
            sums.add(_rows_of_lists(wire.decode(record[1])))
        except wire.TelemetryUnreadable as error:
            reject(str(error))

    read_together(
        accepted(), lambda many: sums.add(_rows_of([block for block, _ in many])), sum_one
    )
    head = {**_EMPTY_ROW, "at": newest_ms // MINUTE_MS * MINUTE_MS * 1_000}
    rows = [
        {**head, "kind": SOURCE, "partition": place, "log_end_max": end}
        for place, end in ends.items()
    ]
    rows += [
        {**head, "kind": REJECT, "op": reason, "samples": count}
        for reason, count in rejects.items()
    ]
    table = pa.concat_tables([sums.result(OUT), pa.Table.from_pylist(rows, OUT)])
    yield from table.combine_chunks().to_batches()


def _rows_of(blocks: Sequence[wire.TelemetryBlock]) -> pa.Table:
    columns = [each.columns for each in blocks]
    found = read_columns(columns, texts=wire.TEXTS, numbers=_COLUMN_NUMBERS, signed=("partition",))
    _check_partitions(columns, found)
    for name in _COLUMN_NUMBERS:
        rows = np.flatnonzero(found.numbers[name] >= _end_of(name))
        if rows.size:
            raise UnusualRecords(found.records_of(rows))
    return _table(found, blocks, _hists_of(blocks, found))


def _end_of(name: str) -> int:
    return _PARTITION_END if name == "partition" else _NUMBER_END


def _table(found: Columns, heads: Sequence[wire.TelemetryHead], hists: pa.Array) -> pa.Table:
    from_ms = np.array([each.from_ms for each in heads], np.int64)
    to_ms = np.array([each.written_at_ms for each in heads], np.int64)
    minute_us = (from_ms + to_ms) // 2 // MINUTE_MS * MINUTE_MS * 1_000
    record_of = np.repeat(np.arange(len(heads)), found.counts)
    made: dict[str, Any] = {**found.texts, **found.numbers}
    made["at"] = pa.array(minute_us[record_of]).view(OUT.field("at").type)
    made["node"] = pa.array([each.node for each in heads], pa.string()).take(pa.array(record_of))
    made["partition"] = found.numbers["partition"].astype(np.int32)
    made["covered_ms"] = (to_ms - from_ms)[record_of]
    made["samples"] = np.ones(len(record_of), np.int64)
    made["hist"] = hists
    sources = {**MAXES, **MINS}
    return pa.table({name: made[sources.get(name, name)] for name in OUT.names}, schema=OUT)


def _check_partitions(columns: Sequence[Mapping[str, msgspec.Raw]], found: Columns) -> None:
    """Raise UnusualRecords if records lack the column ``partition``."""
    empty = bytes(memoryview(_EMPTY))
    counts = found.counts.tolist()
    missing = [
        number
        for number, (each, count) in enumerate(zip(columns, counts, strict=True))
        if count and bytes(memoryview(each.get("partition", _EMPTY))[:5]) == empty
    ]
    if missing:
        raise UnusualRecords(missing)


def _hists_of(blocks: Sequence[wire.TelemetryBlock], found: Columns) -> pa.Array:
    lists: list[list[int]] = []
    for number, (each, count) in enumerate(zip(blocks, found.counts.tolist(), strict=True)):
        try:
            of_record = _hists.decode(each.columns.get("hist", _EMPTY))
        except msgspec.MsgspecError:
            raise UnusualRecords([number]) from None
        if of_record and len(of_record) != count:
            raise UnusualRecords([number])
        lists += of_record or [[]] * count
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    ends = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    try:
        values = np.fromiter(chain.from_iterable(lists), np.int64, int(ends[-1]))
    except OverflowError:
        raise UnusualRecords(range(len(blocks))) from None
    is_unusual = _are_invalid(values, ends)
    if is_unusual.any():
        raise UnusualRecords(found.records_of(np.flatnonzero(is_unusual)))
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(values))


def _are_invalid(values: Longs, ends: Longs) -> Any:
    """Return a mask of invalid histograms, in which a bucket or a count is out of range."""
    lengths = np.diff(ends)
    used = lengths > 0
    first = np.zeros(len(lengths), np.int64)
    first[used] = values[ends[:-1][used]]
    is_unusual = used & (
        (first < 0) | (first > wire.BUCKET_LAST) | (first + lengths - 2 > wire.BUCKET_LAST)
    )
    wrong = np.flatnonzero((values < 0) | (values >= _NUMBER_END))
    is_unusual[np.searchsorted(ends[1:], wrong, side="right")] = True
    return is_unusual


def _rows_of_lists(facts: wire.TelemetryFacts) -> pa.Table:
    """Return the rows of one record. Raises TelemetryUnreadable if a number is out of range."""
    lists = {name: getattr(facts.columns, name) for name in _COLUMN_NUMBERS}
    lists["hist"] = list(chain.from_iterable(facts.columns.hist))
    for name, numbers in lists.items():
        least = -_PARTITION_END if name == "partition" else 0
        if numbers and not least <= min(numbers) <= max(numbers) < _end_of(name):
            raise wire.TelemetryUnreadable(f"column {name} has a number out of range")
    found = listed(facts.columns, texts=wire.TEXTS, numbers=_COLUMN_NUMBERS)
    return _table(found, [facts], pa.array(facts.columns.hist, OUT.field("hist").type))


def names_of(columns: Sequence[str]) -> list[str]:
    """Quote column names for Spark, because some, such as ``group``, are SQL keywords."""
    return [f"`{name}`" for name in columns]


STALLED_MS: Final = 60_000  # time without a commit; most groups commit every few seconds
SLOW_RECORDS_MIN: Final = 100  # a smaller lag is normal: one fetch returns as many records
SHARE_MIN: Final = 0.25
Z_MIN: Final = 3.5
TIMES_MEDIAN_MIN: Final = 3.0
HOT_MAX: Final = 50  # rows; a reader would not look at more
_TO_SIGMA: Final = 1.4826  # standard deviation per median absolute deviation, normal distribution


class State(StrEnum):
    OK = "OK"
    SLOW = "SLOW"  # the group commits, but its lag grows
    STALLED = "STALLED"  # the group lags and commits nothing


class Point(NamedTuple):
    at_ms: int
    committed: int
    log_end: int


class Lag(NamedTuple):
    records: int
    seconds: float | None  # None: not known yet
    trend_per_s: float  # growth of the lag, negative if it shrinks
    eta_s: float | None  # until the group has caught up at this trend; None if it will not
    state: State


def lag_of(points: Sequence[Point]) -> Lag:
    first, last = points[0], points[-1]
    records = max(0, last.log_end - last.committed)
    span_s = (last.at_ms - first.at_ms) / 1_000
    if not records or span_s <= 0:
        seconds = None if records else 0.0
        return Lag(records, seconds, 0.0, None if records else 0.0, State.OK)
    before = max(0, first.log_end - first.committed)
    trend = (records - before) / span_s
    state = State.SLOW if trend > 0 and records >= SLOW_RECORDS_MIN else State.OK
    if last.committed <= first.committed and last.at_ms - first.at_ms >= STALLED_MS:
        state = State.STALLED
    return Lag(records, _seconds(points), trend, records / -trend if trend < 0 else None, state)


def _seconds(points: Sequence[Point]) -> float | None:
    last = points[-1]
    later = last
    for point in reversed(points):
        if point.log_end <= last.committed:
            # The log end passed the group's offset between this moment and the next.
            grown = max(later.log_end - point.log_end, 1)
            share = (last.committed - point.log_end) / grown
            at_ms = point.at_ms + share * (later.at_ms - point.at_ms)
            return (last.at_ms - at_ms) / 1_000
        later = point
    first = points[0]
    rate = (last.log_end - first.log_end) / ((last.at_ms - first.at_ms) / 1_000)
    if rate <= 0:
        return None  # no record was appended in this time, so the lag is older than the points
    return (last.at_ms - first.at_ms) / 1_000 + (first.log_end - last.committed) / rate


class Hot(NamedTuple):
    name: str
    rate: float
    share: float
    z: float
    reason: str


def hot(rates: Mapping[str, float], *, rate_min: float = 1.0, hot_max: int = HOT_MAX) -> list[Hot]:
    """Return names whose rate is far above the others and at least ``rate_min``, highest first."""
    total = sum(rates.values())
    if total <= 0:
        return []
    values = list(rates.values())
    middle = median(values)
    spread = _TO_SIGMA * median(abs(value - middle) for value in values)
    found = []
    for name, rate in rates.items():
        share = rate / total
        z = (rate - middle) / max(spread, middle * 0.05, 1e-9)
        reason = _reason(rate, share, z, middle, count=len(values))
        if reason and rate >= rate_min:
            found.append(Hot(name, rate, share, round(min(z, 1e6), 2), reason))
    found.sort(key=lambda each: (-each.rate, each.name))
    return found[:hot_max]


def _reason(rate: float, share: float, z: float, middle: float, *, count: int) -> str:
    if count < 2:
        return ""  # a single name always has the whole load
    if z >= Z_MIN and rate >= TIMES_MEDIAN_MIN * middle and count >= 3:
        return f"{rate / middle:.0f} times the median" if middle else "the others have no load"
    if share >= max(SHARE_MIN, 2 / count):
        return f"{share:.0%} of the total"
    return ""
