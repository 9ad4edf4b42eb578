"""Fetches and decodes a range of one partition, in a Spark task. Fetches are large (16 MB), because
decoding many batches at once is faster; a thread sends the next fetch meanwhile.

Offsets that no longer exist are data loss. Depending on ``failOnDataLoss``, the read fails with an
error that names the offsets, or continues at the first offset that exists."""

import struct
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.net.kafka_client.client import EARLIEST, KafkaClient, KafkaRefused, Place
from penstock.pipeline.client.options import OnDataLoss, ReadOptions, client_for, new_client
from penstock.pipeline.decoding.decoder import Aborted, Decoder
from penstock.pipeline.reading.offsets import Range
from penstock.record.batch import HEADER_BYTES, LENGTH_FROM
from penstock.wire.kafka.faults import ErrorCode

_BASE: Final = struct.Struct(">q")  # offset, the first field of a batch
_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
_SPAN: Final = struct.Struct(">i")  # last offset delta
_SPAN_AT: Final = 23
_EMPTY_MAX: Final = 20  # consecutive replies without a record, after which the log seems to end
_WAIT_MS: Final = 250
_AHEAD_RECORDS_MIN: Final = 20_000  # fewer are one fetch, for which a thread only costs time


class DataLoss(Exception):
    def __init__(self, place: Place, begin: int, end: int, reason: str) -> None:
        super().__init__(place, begin, end, reason)

    def __str__(self) -> str:
        place, begin, end, reason = self.args
        return (
            f"data loss in topic {place.topic}, partition {place.partition}:"
            f" offsets {begin} to {end} cannot be read: {reason}"
            " (option failOnDataLoss=false continues with the remaining records)"
        )


class RangePartition(InputPartition):
    def __init__(self, *ranges: Range) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class _Reply(NamedTuple):
    begin: int  # the fetched offset, after lost offsets were skipped
    buffers: Sequence[memoryview]
    aborted: frozenset[Aborted]
    next_offset: int  # after the last whole batch


class Fetcher:
    def __init__(self, client: KafkaClient, wanted: Range, options: ReadOptions) -> None:
        self._client = client
        self._range = wanted
        self._options = options
        self._bytes = options.fetch_bytes

    def fetch(self, offset: int) -> _Reply:
        """Fetch records at ``offset``. A reply without buffers means that the range has ended."""
        place, end = self._range.place, self._range.end
        for _ in range(_EMPTY_MAX):
            part = self._client.fetch(
                {place: offset},
                wait_ms=_WAIT_MS,
                bytes_max=self._bytes,
                partition_bytes_max=self._bytes,
                is_committed=self._options.is_committed_only,
            ).get(place)
            if part is None:
                continue
            if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                offset = self._jump(offset)
                if offset >= end:
                    return _Reply(end, (), frozenset(), end)
                continue
            if part.error_code:
                raise KafkaRefused(part.error_code, subject=str(place))
            next_offset = max(offset, whole_span(part.records)[0])
            if next_offset > offset:
                aborted = frozenset((a.producer_id, a.first_offset) for a in part.aborted)
                return _Reply(offset, (part.records,), aborted, next_offset)
            if part.records:
                self._bytes *= 2  # the batch is larger than the fetch and was truncated
        self._lose(offset, end, f"the log returns no records from {offset} on")
        return _Reply(end, (), frozenset(), end)

    def _jump(self, offset: int) -> int:
        place, end = self._range.place, self._range.end
        start = self._client.offsets({place: EARLIEST})[place]
        if start <= offset:
            self._lose(offset, end, f"the log ends before {offset}")
            return end
        self._lose(offset, min(start, end), f"the log begins at {start}")
        return start

    def _lose(self, begin: int, end: int, reason: str) -> None:
        if self._options.on_data_loss is OnDataLoss.FAIL:
            raise DataLoss(self._range.place, begin, end, reason)
        _log(self._range, f"offsets {begin} to {end} are lost: {reason}")


def whole_span(buffer: bytes | memoryview) -> tuple[int, int]:
    """Return the offset after the last complete batch, and the size of all complete batches, or 0,
    0 if there is none. Only lengths are read; ``decode`` validates the batches."""
    at, last, limit = 0, -1, len(buffer)
    length_of = _LENGTH.unpack_from
    while at + HEADER_BYTES <= limit:
        (length,) = length_of(buffer, at + _LENGTH_AT)
        stop = at + LENGTH_FROM + length
        if length <= 0 or stop > limit:
            break
        last, at = at, stop
    if last < 0:
        return 0, 0
    (base,) = _BASE.unpack_from(buffer, last)
    (span,) = _SPAN.unpack_from(buffer, last + _SPAN_AT)
    return base + span + 1, at


def read_range(wanted: Range, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    decoder = Decoder(
        topic=wanted.place.topic,
        partition=wanted.place.partition,
        columns=options.columns,
        begin=wanted.begin,
        end=wanted.end,
        on_corrupt=options.on_corrupt,
    )
    if not wanted.count:
        return
    read = _read_alone if wanted.count < _AHEAD_RECORDS_MIN else _read_ahead
    yield from read(wanted, options, decoder)
    if decoder.corrupt_count:
        _log(wanted, f"{decoder.corrupt_count} corrupt batches were skipped")


def _read_alone(wanted: Range, options: ReadOptions, decoder: Decoder) -> Iterator[pa.RecordBatch]:
    fetcher = Fetcher(client_for(options.connection), wanted, options)
    while decoder.next_offset < wanted.end:
        yield from _decoded(decoder, fetcher.fetch(decoder.next_offset))


def _read_ahead(wanted: Range, options: ReadOptions, decoder: Decoder) -> Iterator[pa.RecordBatch]:
    with (
        new_client(options.connection) as client,
        ThreadPoolExecutor(1, thread_name_prefix="fetch ahead") as ahead,
    ):
        fetcher = Fetcher(client, wanted, options)
        coming: Future[_Reply] | None = ahead.submit(fetcher.fetch, wanted.begin)
        while coming is not None:
            reply = coming.result()
            after = reply.next_offset
            coming = ahead.submit(fetcher.fetch, after) if after < wanted.end else None
            yield from _decoded(decoder, reply)


def _log(wanted: Range, text: str) -> None:
    """Write a line to the log of the Python worker: Spark has no metrics for Python sources."""
    place = wanted.place
    where = f"topic {place.topic}, partition {place.partition}, {wanted.begin} to {wanted.end}"
    print(f"penstock: {where}: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _decoded(decoder: Decoder, reply: _Reply) -> Iterator[pa.RecordBatch]:
    # A batch may begin with deleted records, below ``begin``, which must not be read.
    decoder.next_offset = max(decoder.next_offset, reply.begin)
    yield from decoder.decode(reply.buffers, reply.aborted)
    # A corrupt header may have a wrong next offset; the next offset of the fetch is right.
    decoder.next_offset = max(decoder.next_offset, reply.next_offset)
