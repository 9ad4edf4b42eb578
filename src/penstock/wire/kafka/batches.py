"""Checks produced records: only whole, intact batches of format 2 are accepted.

Only headers are read and checksums verified, so that a produce request is cheap. A bad record in a
batch with a good checksum is found by a consumer. Topics with rules about single records decode
their batches (``frontend/kafka/records/produce.py``). The log sets base offset and leader epoch.

Control batches contain transaction markers and lease events. A client that could write a control
batch could forge the delete of a message, so the control bit is rejected before any other check."""

from functools import partial

from penstock.model.limits import OPENED_BATCH_RECORDS_MAX
from penstock.record import batch
from penstock.record.compression import Codec
from penstock.record.crc32c import crc32c
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.primitives import Malformed

_MAGIC_AT = 16  # position of the magic byte, in the old formats as well
_PREFIX_BYTES = _MAGIC_AT + 1
_ZSTD_FROM = 7  # Produce version
_SERVER_ONLY = (
    batch.ATTR_CONTROL
    | batch.ATTR_DELETE_HORIZON
    | batch.ATTR_APPEND_TIME
    | batch.ATTR_PRODUCED
    | batch.ATTR_SEALED
)


class BatchRefused(Malformed):
    def __init__(self, text: str, code: ErrorCode = ErrorCode.INVALID_RECORD) -> None:
        super().__init__(text)
        self.code = code


_corrupt = partial(BatchRefused, code=ErrorCode.CORRUPT_MESSAGE)  # clients retry
too_large = partial(BatchRefused, code=ErrorCode.MESSAGE_TOO_LARGE)  # clients split the batch


def check_batches(
    records: bytes | memoryview | None, *, version: int, bytes_max: int
) -> list[tuple[memoryview, batch.BatchHeader]]:
    """Check produced records, and return the batches with their headers. ``version`` is the version
    of the Produce request, ``bytes_max`` the maximum size of a batch."""
    if not records:
        raise BatchRefused("the request has a partition without records")
    view = memoryview(records)
    batches: list[tuple[memoryview, batch.BatchHeader]] = []
    position = 0
    end = len(view)
    while position < end:
        header = _header_at(view, position)
        _, length, _, _, crc, attributes, delta, _, _, producer_id, _, _, count = header
        stop = position + length + batch.LENGTH_FROM
        if stop > end:
            raise _corrupt(f"the last {stop - end} bytes of the batch are missing")
        if stop - position > bytes_max:
            raise too_large(f"the batch has {stop - position} bytes; the limit is {bytes_max}")
        # The usual batch passes this test; for others ``_check_rules`` finds the broken rule.
        if (
            attributes > Codec.LZ4
            or attributes < 0
            or count <= 0
            or count != delta + 1
            or producer_id != batch.NO_PRODUCER
        ):
            _check_rules(header, version)
        if crc32c(view[position + batch.CRC_FROM : stop]) != crc:
            raise _corrupt("the batch does not match its checksum")
        batches.append((view[position:stop], header))
        position = stop
    if len(batches) > 1 and any(header.producer_id != batch.NO_PRODUCER for _, header in batches):
        raise BatchRefused("a producer with an id must send only one batch per partition")
    return batches


def check_opened_count(header: batch.BatchHeader) -> None:
    if header.count > OPENED_BATCH_RECORDS_MAX:
        raise too_large(
            f"the batch has {header.count} records; queues, compacted or encrypted topics, and "
            f"topics with limits on timestamps accept at most {OPENED_BATCH_RECORDS_MAX}"
        )


def _header_at(view: memoryview, position: int) -> batch.BatchHeader:
    left = len(view) - position
    if left >= batch.HEADER_BYTES:
        header = batch.parse_header(view, position)
        if header.magic == batch.MAGIC and header.length >= batch.HEADER_BYTES - batch.LENGTH_FROM:
            return header
    # The magic byte comes first, because an old message set may be shorter than this header.
    if left >= _PREFIX_BYTES and view[position + _MAGIC_AT] != batch.MAGIC:
        raise BatchRefused(
            f"the batch has magic {view[position + _MAGIC_AT]}; only {batch.MAGIC} is supported",
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        )
    if left < batch.HEADER_BYTES:
        raise _corrupt(f"the last {left} bytes are too few for a batch")
    raise _corrupt(f"the batch length {header.length} is smaller than a batch header")


def _check_rules(header: batch.BatchHeader, version: int) -> None:
    attributes = header.attributes
    if attributes & _SERVER_ONLY:
        if attributes & batch.ATTR_APPEND_TIME and not attributes & batch.ATTR_CONTROL:
            text = "a producer must not set the append time, only the server does"
            raise BatchRefused(text, ErrorCode.INVALID_TIMESTAMP)
        if attributes & (batch.ATTR_PRODUCED | batch.ATTR_SEALED):
            raise BatchRefused(
                f"the attributes {attributes:#06x} set bit 13 or 14, which only the server may set"
            )
        raise BatchRefused("a producer must not send control batches or delete horizons")
    if header.count <= 0 or header.count != header.last_offset_delta + 1:
        raise BatchRefused(
            f"the batch has {header.count} records, but its last offset delta is"
            f" {header.last_offset_delta}"
        )
    codec = attributes & batch.ATTR_CODEC_MASK
    if codec > Codec.ZSTD or (codec == Codec.ZSTD and version < _ZSTD_FROM):
        text = f"compression codec {codec} is not supported in Produce version {version}"
        raise BatchRefused(text, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if header.producer_id == batch.NO_PRODUCER:
        if attributes & batch.ATTR_TRANSACTIONAL:
            raise BatchRefused("a transactional batch has no producer id")
    elif header.producer_id < 0 or header.producer_epoch < 0 or header.base_sequence < 0:
        raise BatchRefused(
            f"the producer id {header.producer_id}, epoch {header.producer_epoch} or "
            f"sequence {header.base_sequence} is negative"
        )
