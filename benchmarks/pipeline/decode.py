"""Record batches to Arrow, on one core: ``python -m benchmarks.pipeline.decode``.

Counts the CPU time of this process, so that others on the machine do not show, and compares with a
loop over ``iter_records`` that makes the same columns from the same bytes in the same run. Each
chunk is decoded once, by the decoder that has decoded those before it, as a task does it.
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence

import pyarrow as pa
from tests.harness.decoding import decode_batches

from penstock.pipeline.decoding.decoder import PLAIN, Decoder, arrow_schema
from penstock.record.batch import encode_batch, split_batches
from penstock.record.compression import Codec
from penstock.record.record import encode_record, iter_records

KEY_BYTES, VALUE_BYTES = 16, 200
BASE_MS = 1_700_000_000_000


def make_chunk(chance: random.Random, *, batches: int, records: int, codec: int = 0) -> bytes:
    out = []
    for number in range(batches):
        encoded = [
            encode_record(
                offset_delta=delta,
                timestamp_delta=delta,
                key=chance.randbytes(KEY_BYTES),
                value=chance.randbytes(VALUE_BYTES // 2) * 2,
            )
            for delta in range(records)
        ]
        out.append(
            encode_batch(
                encoded,
                base_offset=number * records,
                leader_epoch=0,
                base_timestamp=BASE_MS,
                max_timestamp=BASE_MS + records,
                attributes=codec,
            )
        )
    return b"".join(out)


def decode_by_record(chunk: bytes) -> pa.RecordBatch:
    """What one would write first."""
    rows = [row for batch in split_batches([chunk]) for row in iter_records(batch)]
    count = len(rows)
    columns = {
        "key": [row.key for row in rows],
        "value": [row.value for row in rows],
        "topic": ["t"] * count,
        "partition": [0] * count,
        "offset": [row.offset for row in rows],
        "timestamp": [row.timestamp * 1_000 for row in rows],
        "timestampType": [0] * count,
    }
    return pa.RecordBatch.from_pydict(columns, schema=arrow_schema(PLAIN))


def as_a_task_does() -> Callable[[bytes], pa.RecordBatch]:
    """One decoder for all chunks of a partition."""
    decoder = Decoder(topic="t", partition=0)

    def decode(chunk: bytes) -> pa.RecordBatch:
        decoder.next_offset = 0  # the chunks of the benchmark all begin there
        (rows,) = decoder.decode([chunk])
        return rows

    return decode


def rate(decode: Callable[[bytes], pa.RecordBatch], chunks: Sequence[bytes]) -> float:
    """Records in a second of CPU time: the median over chunks, the first left out as warm-up."""
    rates: list[float] = []
    for chunk in chunks:
        began = time.process_time()
        rows = decode(chunk).num_rows
        rates.append(rows / (time.process_time() - began))
    return sorted(rates[1:])[len(rates[1:]) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=8)
    chunk_count = parser.parse_args().chunks
    chance = random.Random(1)
    print(f"{KEY_BYTES}-byte keys, {VALUE_BYTES}-byte values, all columns; records in a CPU second")
    for batches, records, codec in (
        (400, 100, Codec.NONE),
        (700, 100, Codec.NONE),
        (100, 100, Codec.NONE),
        (20, 4_000, Codec.NONE),
        (4_000, 10, Codec.NONE),
        (400, 100, Codec.LZ4),
        (400, 100, Codec.ZSTD),
    ):
        chunks = [
            make_chunk(chance, batches=batches, records=records, codec=codec)
            for _ in range(chunk_count)
        ]
        fast = rate(as_a_task_does(), chunks)
        slow = rate(decode_by_record, chunks[:3])
        assert decode_batches([chunks[0]], topic="t").equals(decode_by_record(chunks[0]))
        print(
            f"{batches:>4} batches of {records:>5}, {codec.name.lower():<5}"
            f" {fast / 1e6:6.2f} M/s  {slow / 1e6:6.2f} M/s one by one  ratio {fast / slow:5.1f}"
        )


if __name__ == "__main__":
    main()
