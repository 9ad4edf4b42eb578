"""Computes the first offset that each reader (cursor) of a partition has not acked.

Acks are rows (topic, partition, cursor, first, last). There may be tens of millions of rows, in any
order, overlapping and repeated. Each task merges the rows that it reads into islands (ranges of
offsets without a hole), and the driver merges the islands of all tasks. Arrow reads the files by
row groups, because converting rows to JVM rows and back would take most of the time.

Dropping an island to save memory is safe: its offsets then count as not acked, so no record that a
reader needs is deleted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.net.kafka_client.client import Place
from penstock.pipeline.arrow_map import batch_of, map_in_arrow, schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Longs = npt.NDArray[np.int64]
Key = tuple[str, int, str]  # topic, partition, cursor
Islands = tuple[Longs, Longs]  # firsts and lasts, ascending, with a hole between any two

COLUMNS: Final = ("topic", "partition", "cursor", "first", "last")
ISLANDS_MAX: Final = 1_000_000  # of one cursor and partition in one task; the lowest are kept
_DENSE: Final = 4  # offsets per range up to which a counter per offset is faster than a sort
_SCHEMA: Final = schema_of("topic string, partition int, cursor string, first long, last long")


def islands_of(first: Longs, last: Longs) -> Islands:
    if not len(first):
        return first, last
    low, high = int(first.min()), int(last.max())
    if high - low < _DENSE * len(first):
        return _laid_out(first, last, low, high)
    if (first[1:] < first[:-1]).any():
        order = np.argsort(first, kind="stable")
        first, last = first[order], last[order]
    reach = np.maximum.accumulate(last)
    begins = np.concatenate(([True], first[1:] > reach[:-1] + 1))
    at = np.flatnonzero(begins)
    ends = np.concatenate((at[1:] - 1, [len(first) - 1]))
    return first[at], reach[ends]


def _laid_out(first: Longs, last: Longs, low: int, high: int) -> Islands:
    size = high - low + 2
    depth = np.bincount(first - low, minlength=size) - np.bincount(last - low + 1, minlength=size)
    is_in = np.cumsum(depth) > 0
    edges = np.flatnonzero(np.diff(np.concatenate(([False], is_in)).astype(np.int8)))
    return edges[0::2] + low, edges[1::2] + low - 1


def merge_acks(batches: Iterable[pa.RecordBatch | pa.Table]) -> dict[Key, Islands]:
    found: dict[Key, Islands] = {}
    for batch in batches:
        for key, first, last in _by_key(batch):
            made = islands_of(first, last)
            if key in found:
                before = found[key]
                made = islands_of(
                    *(np.concatenate(pair) for pair in zip(before, made, strict=True))
                )
            found[key] = (made[0][:ISLANDS_MAX], made[1][:ISLANDS_MAX])
    return found


def _by_key(batch: pa.RecordBatch | pa.Table) -> Iterator[tuple[Key, Longs, Longs]]:
    """Yield, for each topic, partition and cursor, its acked ranges. Skip invalid rows."""
    table = pa.table({name: batch.column(name) for name in COLUMNS})
    codes = np.zeros(table.num_rows, np.int64)
    names: list[list[Any]] = []
    for name in COLUMNS[:3]:
        coded = table.column(name).combine_chunks()
        coded = coded if pa.types.is_dictionary(coded.type) else coded.dictionary_encode()
        names.append(coded.dictionary.to_pylist())
        indices = pc.fill_null(coded.indices, len(names[-1])).to_numpy(zero_copy_only=False)
        codes = codes * (len(names[-1]) + 1) + indices
    # -1 for null: no range has this offset.
    filled = (pc.fill_null(table.column(name).cast(pa.int64()), -1) for name in COLUMNS[3:])
    first, last = (np.asarray(each.to_numpy(), np.int64) for each in filled)
    good = np.flatnonzero((last >= first) & (first >= 0))
    for code, rows in _grouped(codes[good]):
        key = _key(code, names)
        if key is not None:
            yield key, first[good[rows]], last[good[rows]]


def _grouped(codes: Longs) -> Iterator[tuple[int, Any]]:
    if not len(codes):
        return
    if codes.min() == codes.max():
        yield int(codes[0]), slice(None)
        return
    # NumPy sorts 16-bit integers by radix, in one pass over the rows.
    order = np.argsort(codes.astype(np.int16) if codes.max() < 2**15 else codes, kind="stable")
    ordered = codes[order]
    edges = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1], [True])))
    for begin, end in pairwise(edges):
        yield int(ordered[begin]), order[begin:end]


def _key(code: int, names: Sequence[Sequence[Any]]) -> Key | None:
    found = []
    for values in reversed(names):
        code, index = divmod(code, len(values) + 1)
        found.append(values[index] if index < len(values) else None)
    cursor, partition, topic = found
    if topic is None or partition is None or cursor is None:
        return None
    return topic, partition, cursor


def _rows(found: Mapping[Key, Islands]) -> pa.RecordBatch:
    counts = np.array([len(first) for first, _ in found.values()], np.int64)
    rows = pa.array(np.repeat(np.arange(len(found)), counts))
    keys = batch_of(found, pa.schema(list(_SCHEMA)[:3])).take(rows)
    edges = zip(*found.values(), strict=True) if found else ((), ())
    numbers = [pa.array(np.concatenate([*each, np.zeros(0, np.int64)])) for each in edges]
    return pa.RecordBatch.from_arrays([*keys.columns, *numbers], schema=_SCHEMA)


def read_ack_files(
    spark: "SparkSession", paths: Sequence[str], *, tasks: int
) -> dict[Key, Islands]:
    groups = [(path, g) for path in paths for g in range(pq.ParquetFile(path).num_row_groups)]
    if not groups:
        return {}
    tasks = max(1, min(tasks, len(groups)))
    numbers = spark.range(0, len(groups), 1, tasks)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        chosen = (groups[n] for batch in batches for n in batch.column(0).to_pylist())
        yield _rows(merge_acks(_read(path, group) for path, group in chosen))

    return merge_acks([map_in_arrow(numbers, read, _SCHEMA).toArrow()])


def _read(path: str, group: int) -> pa.Table:
    with pq.ParquetFile(path, read_dictionary=["topic", "cursor"]) as file:
        return file.read_row_group(group, columns=list(COLUMNS), use_threads=False)


def floors(
    found: Mapping[Key, Islands], starts: Mapping[Place, int]
) -> dict[Place, dict[str, int]]:
    """Return, for each partition and cursor, the first offset in the log that is not acked."""
    needs: dict[Place, dict[str, int]] = {}
    for (topic, partition, cursor), (first, last) in found.items():
        place = Place(topic, partition)
        floor = starts[place]
        at = int(np.searchsorted(first, floor, side="right")) - 1
        if at >= 0 and last[at] >= floor:
            floor = int(last[at]) + 1
        needs.setdefault(place, {})[cursor] = floor
    return needs
