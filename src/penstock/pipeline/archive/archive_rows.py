"""Defines the schema of archive tables, and divides the records of a table among files by hour.

Each row is a decoded record. Files are divided by the hour (UTC) of the record timestamps. Nearly
all batches lie within one hour; the records of other batches are sorted by hour. A batch has
records of only one partition, in log order, so its first and last row give its range of offsets.
Producers may send any timestamp; if it is not a valid calendar date, the record's date is null."""

import datetime
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.net.kafka_client.client import Place
from penstock.pipeline.decoding import decoder as made
from penstock.pipeline.parts import Piece, Span

COLUMNS: Final = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
PARTITION_BY: Final = ("date", "hour")
TABLE_SCHEMA: Final = pa.schema(
    [*made.arrow_schema(COLUMNS), ("date", pa.date32()), ("hour", pa.int32())]
)
_HOUR_US: Final = 3_600_000_000
_EPOCH: Final = datetime.date(1970, 1, 1)
_DAYS_MIN: Final = (datetime.date.min - _EPOCH).days
_DAYS_MAX: Final = (datetime.date.max - _EPOCH).days


def by_hour(batches: Iterable[pa.RecordBatch], place: Place) -> Iterator[Piece]:
    where = (place.topic, place.partition)
    for batch in batches:
        if not batch.num_rows:
            continue
        times = batch.column("timestamp").view(pa.int64()).to_numpy()
        offsets = batch.column("offset").to_numpy()
        first, last = int(times.min()) // _HOUR_US, int(times.max()) // _HOUR_US
        if first == last:
            span = Span(int(offsets[0]), int(offsets[-1]), len(offsets))
            yield Piece(_values(first), batch, {where: span})
            continue
        hours = times // _HOUR_US
        order = np.argsort(hours, kind="stable")  # rows of an hour stay in their order
        edges = np.flatnonzero(np.diff(hours[order])) + 1
        for rows in np.split(order, edges):
            span = Span(int(offsets[rows[0]]), int(offsets[rows[-1]]), len(rows))
            hour = int(hours[rows[0]])
            yield Piece(_values(hour), batch.take(pa.array(rows)), {where: span})


def _values(hour: int) -> tuple[str | None, ...]:
    """Return the values of columns date and hour. ``hour`` counts hours since the Unix epoch."""
    days, of_day = divmod(hour, 24)
    if not _DAYS_MIN <= days <= _DAYS_MAX:
        return None, str(of_day)
    return (_EPOCH + datetime.timedelta(days=days)).isoformat(), str(of_day)


def known_id(text: str) -> str:
    """Return a topic id, or "" for all zeros, which means that the server has no topic ids."""
    return text if text.strip("0") else ""
