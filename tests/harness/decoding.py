"""Decodes batches of the log into one Arrow batch."""

from collections.abc import Iterable, Sequence

import pyarrow as pa

from penstock.pipeline.decoding.decoder import (
    OFFSET_MAX,
    PLAIN,
    Aborted,
    Buffer,
    Decoder,
    OnCorrupt,
    arrow_schema,
)


def decode_batches(
    buffers: Sequence[Buffer],
    *,
    columns: Sequence[str] = PLAIN,
    topic: str = "",
    partition: int = 0,
    begin: int = 0,
    end: int = OFFSET_MAX,
    aborted: Iterable[Aborted] = (),
    on_corrupt: OnCorrupt = OnCorrupt.FAIL,
) -> pa.RecordBatch:
    """Decode into one Arrow batch; for large reads use ``Decoder``, which yields several."""
    decoder = Decoder(
        topic=topic,
        partition=partition,
        columns=columns,
        begin=begin,
        end=end,
        on_corrupt=on_corrupt,
    )
    parts = list(decoder.decode(buffers, aborted))
    if len(parts) == 1:
        return parts[0]
    return (
        pa.concat_batches(parts) if parts else pa.RecordBatch.from_pylist([], arrow_schema(columns))
    )
