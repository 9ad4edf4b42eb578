"""Fetches and decodes a range of offsets of one partition, in a Spark task. Fetches are large (16
MB), because decoding many batches at once is faster. Meanwhile, a thread sends the next fetch.

Offsets that no longer exist are data loss. Depending on ``failOnDataLoss``, the read fails with an
error that names the offsets, or continues at the first offset that exists."""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.net.kafka_client.client import EARLIEST, KafkaClient, KafkaRefused
from penstock.pipeline.client.options import OnDataLoss, ReadOptions, client_for, new_client
from penstock.pipeline.decoding.batches import whole_span
from penstock.pipeline.decoding.decoder import Aborted, Decoder
from penstock.pipeline.reading.expand import expansion_for
from penstock.pipeline.reading.offsets import Range
from penstock.wire.kafka.faults import ErrorCode

_EMPTY_MAX: Final = 20  # consecutive replies without a record, after which the log seems to end
_WAIT_MS: Final = 250
_AHEAD_RECORDS_MIN: Final = 20_000  # fewer are one fetch, for which a thread only costs time


class DataLoss(Exception):
    """Raised if offsets do not exist any more, with the partition, first offset, end and reason."""

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


def fetcher(client: KafkaClient, wanted: Range, options: ReadOptions) -> Callable[[int], _Reply]:
    """Return a function that fetches records from an offset on. At the end of the range, it returns
    a reply without buffers."""
    place, end, size = wanted.place, wanted.end, options.fetch_bytes

    def lose(begin: int, until: int, reason: str) -> None:
        if options.on_data_loss is OnDataLoss.FAIL:
            raise DataLoss(place, begin, until, reason)
        _log(wanted, f"offsets {begin} to {until} are lost: {reason}")

    def fetch(offset: int) -> _Reply:
        nonlocal size
        for _ in range(_EMPTY_MAX):
            part = client.fetch(
                {place: offset},
                wait_ms=_WAIT_MS,
                bytes_max=size,
                partition_bytes_max=size,
                is_committed=options.is_committed_only,
            ).get(place)
            if part is None:
                continue
            if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                start = client.offsets({place: EARLIEST})[place]
                if start <= offset:
                    lose(offset, end, f"the log ends before {offset}")
                else:
                    lose(offset, min(start, end), f"the log begins at {start}")
                if start <= offset or start >= end:
                    return _Reply(end, (), frozenset(), end)
                offset = start
                continue
            if part.error_code:
                raise KafkaRefused(part.error_code, subject=str(place))
            next_offset = max(offset, whole_span(part.records)[0])
            if next_offset > offset:
                aborted = frozenset((a.producer_id, a.first_offset) for a in part.aborted)
                return _Reply(offset, (part.records,), aborted, next_offset)
            if part.records:
                size *= 2  # the batch is larger than the fetch and was truncated
        lose(offset, end, f"the log returns no records from {offset} on")
        return _Reply(end, (), frozenset(), end)

    return fetch


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
    if wanted.count < _AHEAD_RECORDS_MIN:
        fetch = fetcher(client_for(options.connection), wanted, options)
        while decoder.next_offset < wanted.end:
            yield from _decoded(decoder, fetch(decoder.next_offset))
    else:
        with (
            new_client(options.connection) as client,
            ThreadPoolExecutor(1, thread_name_prefix="fetch ahead") as ahead,
        ):
            fetch = fetcher(client, wanted, options)
            coming: Future[_Reply] | None = ahead.submit(fetch, wanted.begin)
            while coming is not None:
                reply = coming.result()
                after = reply.next_offset
                coming = ahead.submit(fetch, after) if after < wanted.end else None
                yield from _decoded(decoder, reply)
    if decoder.corrupt_count:
        _log(wanted, f"{decoder.corrupt_count} corrupt batches were skipped")


def _log(wanted: Range, text: str) -> None:
    """Write a line to the Python worker's log, because Spark has no metrics for Python sources."""
    place = wanted.place
    where = f"topic {place.topic}, partition {place.partition}, {wanted.begin} to {wanted.end}"
    print(f"penstock: {where}: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _decoded(decoder: Decoder, reply: _Reply) -> Iterator[pa.RecordBatch]:
    # A batch may begin with deleted records, below ``begin``, which must not be read.
    decoder.next_offset = max(decoder.next_offset, reply.begin)
    yield from decoder.decode(reply.buffers, reply.aborted)
    # A corrupt header may have a wrong next offset; the next offset of the fetch is right.
    decoder.next_offset = max(decoder.next_offset, reply.next_offset)


def read_rows(
    partition: InputPartition, options: ReadOptions, schema: pa.Schema | None
) -> Iterator[pa.RecordBatch]:
    """Read the ranges of a task, and decode the records as the option ``decode`` says."""
    assert isinstance(partition, RangePartition)
    expansion = expansion_for(options, schema)
    for wanted in partition.ranges:
        for batch in read_range(wanted, expansion.reading):
            yield expansion.expand(batch)
