"""Checks produced records: only whole, intact batches of format 2 are accepted.

    ┌───────────┬─────────┬───────────┬─────────┬──
    │ header 61 │ records │ header 61 │ records │ …        see record/batch.py for the header
    └───────────┴─────────┴───────────┴─────────┴──

Only headers are read and checksums verified; records are not decoded. This keeps a produce cheap,
and is why a bad record inside a good batch is found by its reader. Topics with rules about single
records decode their batches (``frontend/kafka/records/produce.py``). Base offset and leader
epoch are ignored: the log sets them.

Control batches carry transaction markers and lease events. A client that could write one could
forge a delete, so the control bit is rejected before anything else is checked.

BatchRefused
├── BatchCorrupt              length or checksum is wrong: CORRUPT_MESSAGE, clients send again
├── MagicUnsupported          an old message set: UNSUPPORTED_FOR_MESSAGE_FORMAT
├── BatchTooLarge             MESSAGE_TOO_LARGE: clients then split the batch
├── CompressionUnsupported    UNSUPPORTED_COMPRESSION_TYPE
├── TimestampInvalid          INVALID_TIMESTAMP
└── BatchInvalid              any other rule: INVALID_RECORD
"""

from typing import ClassVar

from penstock.model.limits import OPENED_BATCH_RECORDS_MAX
from penstock.record.batch import (
    ATTR_APPEND_TIME,
    ATTR_CODEC_MASK,
    ATTR_CONTROL,
    ATTR_DELETE_HORIZON,
    ATTR_PRODUCED,
    ATTR_SEALED,
    ATTR_TRANSACTIONAL,
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_FROM,
    MAGIC,
    NO_PRODUCER,
    BatchHeader,
    parse_header,
)
from penstock.record.compression import Codec
from penstock.record.crc32c import crc32c
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.malformed import Malformed

_MAGIC_AT = 16  # in the old formats as well
_PREFIX_BYTES = _MAGIC_AT + 1
_ZSTD_FROM = 7  # Produce version
_SERVER_ONLY = ATTR_CONTROL | ATTR_DELETE_HORIZON | ATTR_APPEND_TIME | ATTR_PRODUCED | ATTR_SEALED


class BatchRefused(Malformed):
    code: ClassVar[ErrorCode] = ErrorCode.INVALID_RECORD


class BatchCorrupt(BatchRefused):
    code = ErrorCode.CORRUPT_MESSAGE


class MagicUnsupported(BatchRefused):
    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class BatchTooLarge(BatchRefused):
    code = ErrorCode.MESSAGE_TOO_LARGE


class CompressionUnsupported(BatchRefused):
    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class TimestampInvalid(BatchRefused):
    code = ErrorCode.INVALID_TIMESTAMP


class BatchInvalid(BatchRefused):
    code = ErrorCode.INVALID_RECORD


def check_batches(
    records: bytes | memoryview | None, *, version: int, bytes_max: int
) -> list[tuple[memoryview, BatchHeader]]:
    """Return the batches in a partition's records, each with its header. Raises BatchRefused.

    ``version`` is that of the Produce request, ``bytes_max`` the limit of a batch of the topic."""
    if not records:
        raise BatchInvalid("a partition has no batch")
    view = memoryview(records)
    batches: list[tuple[memoryview, BatchHeader]] = []
    position = 0
    end = len(view)
    while position < end:
        header = _header_at(view, position)
        _, length, _, _, crc, attributes, delta, _, _, producer_id, _, _, count = header
        stop = position + length + LENGTH_FROM
        if stop > end:
            raise BatchCorrupt(f"the batch is {stop - end} bytes longer than the records")
        if stop - position > bytes_max:
            raise BatchTooLarge(f"the batch has {stop - position} bytes, {bytes_max} are allowed")
        # The usual batch passes here; otherwise the exact rule is found below.
        if (
            attributes > Codec.LZ4
            or attributes < 0
            or count <= 0
            or count != delta + 1
            or producer_id != NO_PRODUCER
        ):
            _check_rules(header, version)
        if crc32c(view[position + CRC_FROM : stop]) != crc:
            raise BatchCorrupt("the batch does not match its checksum")
        batches.append((view[position:stop], header))
        position = stop
    if len(batches) > 1 and any(header.producer_id != NO_PRODUCER for _, header in batches):
        raise BatchInvalid("a producer with an id sends one batch per partition")
    return batches


def check_opened_count(header: BatchHeader) -> None:
    """Check the number of records for a topic whose batches are decoded. Raises BatchTooLarge."""
    if header.count > OPENED_BATCH_RECORDS_MAX:
        raise BatchTooLarge(
            f"a batch of {header.count} records; queues, compacted or encrypted topics and topics "
            f"with limits on timestamps take at most {OPENED_BATCH_RECORDS_MAX}"
        )


def _header_at(view: memoryview, position: int) -> BatchHeader:
    left = len(view) - position
    if left >= HEADER_BYTES:
        header = parse_header(view, position)
        if header.magic == MAGIC and header.length >= HEADER_BYTES - LENGTH_FROM:
            return header
    # Magic first: an old message set is shorter than our header, and has its own error.
    if left >= _PREFIX_BYTES and view[position + _MAGIC_AT] != MAGIC:
        raise MagicUnsupported(f"magic {view[position + _MAGIC_AT]}, only {MAGIC} is supported")
    if left < HEADER_BYTES:
        raise BatchCorrupt(f"{left} bytes are too few for a batch")
    raise BatchCorrupt(f"length {header.length} is smaller than a batch header")


def _check_rules(header: BatchHeader, version: int) -> None:
    attributes = header.attributes
    if attributes & _SERVER_ONLY:
        if attributes & ATTR_APPEND_TIME and not attributes & ATTR_CONTROL:
            raise TimestampInvalid("append time is set by the log, not by a producer")
        if attributes & (ATTR_PRODUCED | ATTR_SEALED):
            raise BatchInvalid(
                f"attributes {attributes:#06x}: bits 13 and 14 are reserved for the server"
            )
        raise BatchInvalid("only the log writes control batches and delete horizons")
    if header.count <= 0 or header.count != header.last_offset_delta + 1:
        raise BatchInvalid(
            f"{header.count} records and a last offset delta of {header.last_offset_delta}"
        )
    codec = attributes & ATTR_CODEC_MASK
    if codec > Codec.ZSTD or (codec == Codec.ZSTD and version < _ZSTD_FROM):
        raise CompressionUnsupported(f"codec {codec} is not supported in version {version}")
    if header.producer_id == NO_PRODUCER:
        if attributes & ATTR_TRANSACTIONAL:
            raise BatchInvalid("a transactional batch has no producer id")
    elif header.producer_id < 0 or header.producer_epoch < 0 or header.base_sequence < 0:
        raise BatchInvalid(
            f"producer {header.producer_id}, epoch {header.producer_epoch}, "
            f"sequence {header.base_sequence}: none may be negative"
        )
