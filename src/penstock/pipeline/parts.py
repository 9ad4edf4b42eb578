"""Writes rows to Parquet files in a table's folder, and syncs the files before a commit names them.

This runs in an executor's Python worker (or in the driver for a few rows). Readers ignore a file
that the table's log does not name, so the files of a task that dies or runs twice are harmless
orphans. Each file has the rows of one combination of partition values, in their original order.
Sizes of row groups and the number of open files are limited, so a task's memory does not depend on
its input."""

import contextlib
import datetime
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.pipeline.arrow_map import batch_of, schema_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROW_GROUP_BYTES: Final = 32 * 1_048_576  # readers hold one row group; larger ones compress better
ROW_GROUP_ROWS_MAX: Final = 1_048_576
FILE_BYTES_MAX: Final = 256 * 1_048_576  # keeps compaction and retries cheap
OPEN_FILES_MAX: Final = 32  # per task; above it, the least recently used is closed
STAT_TEXT_CHARS_MAX: Final = 64  # longer texts have no minimum and maximum in the log
NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"

# Executors return one such row for each file to the driver.
PART_SCHEMA: Final = schema_of(
    "path string, size long, rows long, written_at_ms long, detail string"
)

# Columns with the origin of a row that comes from a log.
TOPIC, PARTITION, OFFSET = "topic", "partition", "offset"


@dataclass(frozen=True, slots=True)
class Span:
    """The range of offsets of a partition in a part file, and the number of records in it."""

    first: int
    last: int
    count: int

    def __add__(self, other: "Span") -> "Span":
        return Span(
            min(self.first, other.first), max(self.last, other.last), self.count + other.count
        )


Spans = dict[tuple[str, int], Span]


@dataclass(frozen=True, slots=True)
class Part:
    path: str  # relative to the table's folder
    size: int
    rows: int
    written_at_ms: int
    values: Mapping[str, str | None]  # of the partition columns
    stats: str  # JSON in the format of Delta's log
    spans: Spans = field(default_factory=dict)

    def to_row(self) -> tuple[str, int, int, int, str]:
        spans = [[topic, p, s.first, s.last, s.count] for (topic, p), s in self.spans.items()]
        detail = json.dumps({"values": dict(self.values), "stats": self.stats, "spans": spans})
        return self.path, self.size, self.rows, self.written_at_ms, detail

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> "Part":
        path, size, rows, written_at_ms, text = row
        detail = json.loads(text)
        spans = {(t, p): Span(first, last, n) for t, p, first, last, n in detail["spans"]}
        return cls(path, size, rows, written_at_ms, detail["values"], detail["stats"], spans)


class Piece(NamedTuple):
    """Rows for one file. Their partition values are in ``values`` and not in columns."""

    values: tuple[str | None, ...]  # in the order of the partition columns
    rows: pa.RecordBatch
    spans: Spans


def part_batches(
    batches: Iterable[pa.RecordBatch], root: Path, partition_by: Sequence[str], *, is_tracked: bool
) -> Iterator[pa.RecordBatch]:
    """Call ``write_parts`` and yield its result as one batch, for use with ``mapInArrow``."""
    yield batch_of_parts(write_parts(batches, root, partition_by, is_tracked=is_tracked))


def batch_of_parts(parts: Iterable[Part]) -> pa.RecordBatch:
    return batch_of([part.to_row() for part in parts], PART_SCHEMA)


def read_parts(rows: "DataFrame") -> list[Part]:
    return [Part.from_row(row) for row in rows.collect()]


def write_parts(
    batches: Iterable[pa.RecordBatch], root: Path, partition_by: Sequence[str], *, is_tracked: bool
) -> list[Part]:
    """Write all rows to files in a table's folder, and sync the files to disk."""
    pieces = (
        Piece(values, rows, _spans_of(rows) if is_tracked else {})
        for batch in batches
        for values, rows in _by_partition(batch, partition_by)
    )
    return write_pieces(pieces, root, partition_by)


def write_pieces(pieces: Iterable[Piece], root: Path, partition_by: Sequence[str]) -> list[Part]:
    done: list[Part] = []
    open_files: dict[tuple[str | None, ...], _PartFile] = {}
    try:
        for piece in pieces:
            file = open_files.pop(piece.values, None)
            if file is None:
                if len(open_files) >= OPEN_FILES_MAX:
                    done.append(open_files.pop(next(iter(open_files))).finish())
                named = dict(zip(partition_by, piece.values, strict=True))
                file = _PartFile(root, named, piece.rows.schema)
            open_files[piece.values] = file  # at the end; the first is the least recently used
            file.add(piece)
            if file.is_full:
                done.append(open_files.pop(piece.values).finish())
        while open_files:
            done.append(open_files.popitem()[1].finish())
    finally:
        for file in open_files.values():
            file.drop()
    for folder in {(root / part.path).parent for part in done}:
        while folder not in (root, folder.parent):
            sync(folder)
            folder = folder.parent
        sync(folder)
    return done


def _by_partition(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Divide a batch by the values of its partition columns, and remove these columns."""
    if batch.num_rows == 0:
        return
    names = list(partition_by)
    if not names:
        yield (), batch
        return
    rest = batch.drop_columns(names)
    keys = [batch.column(name) for name in names]
    if all(len(pc.unique(key)) == 1 for key in keys):  # nearly always: hours come in order
        yield tuple(_text(key[0].as_py()) for key in keys), rest
        return
    numbers = pa.array(range(batch.num_rows), pa.int64())
    table = pa.Table.from_arrays([*keys, numbers], [*names, "__row"])
    groups = table.group_by(names).aggregate([("__row", "list")])
    for group in groups.to_pylist():
        rows = pa.array(sorted(group["__row_list"]), pa.int64())
        yield tuple(_text(group[name]) for name in names), rest.take(rows)


def _text(value: Any) -> str | None:
    """Return a partition value in the format of Delta's log."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case datetime.datetime():
            raise TypeError("partition values must be dates, numbers or texts, not timestamps")
        case str() if not value.isascii():
            # Readers encode such folder names differently.
            raise ValueError("partition values must be ASCII")
        case str() | int() | datetime.date():
            # Delta does not distinguish an empty text from null in a folder's name.
            return str(value) or None
    raise TypeError(f"a partition value cannot have type {type(value).__name__}")


class _PartFile:
    """A Parquet file being written, and rows that do not fill a row group yet."""

    def __init__(self, root: Path, values: Mapping[str, str | None], schema: pa.Schema) -> None:
        folders = "".join(
            f"{name}={NULL_PARTITION if value is None else quote(value, safe='')}/"
            for name, value in values.items()
        )
        self._relative = f"{folders}part-{uuid.uuid4()}.zstd.parquet"
        self._path = root / self._relative
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._values = values
        self._file = self._path.open("xb")
        self._metadata: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            compression="zstd",
            compression_level=1,
            metadata_collector=self._metadata,
            # Names repeat; bodies and numbers rarely do.
            use_dictionary=[f.name for f in schema if f.type in (pa.string(), pa.bool_())],
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._waiting_rows = 0
        self._spans: Spans = {}

    @property
    def is_full(self) -> bool:
        return self._file.tell() >= FILE_BYTES_MAX

    def add(self, piece: Piece) -> None:
        rows = piece.rows
        add_spans(self._spans, piece.spans)
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        self._waiting_rows += rows.num_rows
        if self._waiting_bytes >= ROW_GROUP_BYTES or self._waiting_rows >= ROW_GROUP_ROWS_MAX:
            self._write_group()

    def _write_group(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), ROW_GROUP_ROWS_MAX)
            self._waiting, self._waiting_bytes, self._waiting_rows = [], 0, 0

    def finish(self) -> Part:
        try:
            self._write_group()
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        except BaseException:
            self.drop()
            raise
        (metadata,) = self._metadata
        return Part(
            path=self._relative,
            size=self._path.stat().st_size,
            rows=metadata.num_rows,
            written_at_ms=time.time_ns() // 1_000_000,
            values=self._values,
            stats=json.dumps(_stats(metadata)),
            spans=self._spans,
        )

    def drop(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):  # a full disk fails here as well
            self._writer.close()
        with contextlib.suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)


def _spans_of(rows: pa.RecordBatch) -> Spans:
    table = pa.Table.from_arrays(
        [rows.column(TOPIC), rows.column(PARTITION), rows.column(OFFSET)], ["t", "p", "o"]
    )
    found = table.group_by(["t", "p"]).aggregate([("o", "min"), ("o", "max"), ("o", "count")])
    return {
        (row["t"], row["p"]): Span(row["o_min"], row["o_max"], row["o_count"])
        for row in found.to_pylist()
    }


def add_spans(spans: Spans, more: Spans) -> None:
    for place, span in more.items():
        spans[place] = spans[place] + span if place in spans else span


def spans_of_file(path: str) -> Spans:
    spans: Spans = {}
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=[TOPIC, PARTITION, OFFSET]):
            add_spans(spans, _spans_of(batch))
    return spans


def _stats(metadata: pq.FileMetaData) -> dict[str, Any]:
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    unknown: set[str] = set()
    nulls: dict[str, int] = {}
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        for c in range(group.num_columns):
            column = group.column(c)
            name, seen = column.path_in_schema, column.statistics
            if "." in name or seen is None:
                continue  # readers do not prune by columns of lists or structs
            if seen.has_null_count:
                nulls[name] = nulls.get(name, 0) + seen.null_count
            edges = _edges(seen)
            if edges is not None:
                least[name] = min(least.get(name, edges[0]), edges[0])
                greatest[name] = max(greatest.get(name, edges[1]), edges[1])
            elif not seen.has_null_count or seen.null_count < column.num_values:
                unknown.add(name)
    known = [name for name in least if name not in unknown]
    return {
        "numRecords": metadata.num_rows,
        "minValues": {name: _stat(least[name], is_max=False) for name in known},
        "maxValues": {name: _stat(greatest[name], is_max=True) for name in known},
        "nullCount": nulls,
    }


def _edges(seen: pq.Statistics) -> tuple[Any, Any] | None:
    """Return a column's minimum and maximum, or None if Delta's log cannot represent them."""
    if not seen.has_min_max:
        return None
    try:
        least, greatest = seen.min, seen.max
    except (OverflowError, ValueError):
        return None  # a producer may send any timestamp, even outside the calendar
    return (least, greatest) if _is_comparable(least) and _is_comparable(greatest) else None


def _is_comparable(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= STAT_TEXT_CHARS_MAX
    if isinstance(value, datetime.date):
        return value.year < datetime.MAXYEAR  # the end of that year cannot be rounded up
    return isinstance(value, int) and not isinstance(value, bool)


def _stat(value: Any, *, is_max: bool) -> Any:
    """Convert a minimum or maximum for Delta's log. Maximum times are rounded up to whole ms."""
    if isinstance(value, datetime.datetime):
        if is_max:
            value += datetime.timedelta(microseconds=999)
        return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
