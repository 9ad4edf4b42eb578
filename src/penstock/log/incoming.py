"""Checks of batches that a follower received from its leader, before they are written.

Batches are stored with the offsets and epochs they arrive with, so an error in them would be
permanent. Everything that a scan of the log would reject is rejected here: a log can always be
opened again after an append. A batch's CRC does not cover its epoch and offset; instead, each batch
must begin where the one before it ends, and its epoch must not be lower.

Compaction leaves no gaps: a bare batch covers the offsets of removed records. But compaction merges
neighbouring bare batches, so the first batch may begin below the end of a log that has some of them
already. Then only the rest of its offsets is appended.
"""

from pathlib import Path

from penstock.log.storage.scan import header_fault
from penstock.model.errors import Damaged
from penstock.model.limits import BATCH_BYTES_MAX
from penstock.record.batch import (
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_FROM,
    MAGIC,
    BatchHeader,
    parse_header,
)
from penstock.record.compaction import empty_batch, is_bare
from penstock.record.crc32c import crc32c

APPEND_BYTES_MAX = 2**30  # one write can hold it on every known system


def verified(view: memoryview, *, offset: int, epoch: int, folder: Path) -> list[BatchHeader]:
    """Return the headers of the batches. Raises Damaged, with the log and the position in ``view``,
    if a batch may not follow ``offset`` and ``epoch``."""
    headers: list[BatchHeader] = []
    make, unpack, at, limit = tuple.__new__, HEADER.unpack_from, 0, len(view)
    if limit > APPEND_BYTES_MAX:
        raise Damaged(str(folder), 0, f"{limit} bytes at once, at most {APPEND_BYTES_MAX}")
    while at < limit:
        if limit - at < HEADER_BYTES:
            raise Damaged(str(folder), at, f"{limit - at} bytes are too few for a batch")
        fields = unpack(view, at)
        end = at + fields[1] + LENGTH_FROM
        if (
            fields[0] != offset
            or fields[2] < epoch
            or fields[3] != MAGIC
            or not HEADER_BYTES <= end - at <= BATCH_BYTES_MAX
            or fields[6] < 0
            or end > limit
        ):
            header = make(BatchHeader, fields)
            raise Damaged(str(folder), at, _fault(header, offset, epoch, limit - at))
        if crc32c(view[at + CRC_FROM : end]) != fields[4]:
            raise Damaged(str(folder), at, "the CRC does not match")
        headers.append(make(BatchHeader, fields))
        offset += fields[6] + 1
        epoch, at = fields[2], end
    return headers


def _fault(header: BatchHeader, offset: int, epoch: int, left_bytes: int) -> str:
    reason = header_fault(header, offset)
    if reason is None and header.leader_epoch < epoch:
        reason = f"leader epoch {header.leader_epoch} after epoch {epoch}"
    return reason or f"the batch is truncated by {header.total_bytes - left_bytes} bytes"


def trimmed(view: memoryview, offset: int) -> memoryview:
    """Return the batches without the offsets of a bare first batch that the log already has."""
    if len(view) < HEADER_BYTES:
        return view
    header = parse_header(view)
    if (
        not header.base_offset < offset < header.next_offset
        or not is_bare(header)
        or header.total_bytes != HEADER_BYTES
        or crc32c(view[CRC_FROM:HEADER_BYTES]) != header.crc
    ):
        return view
    rest = header._replace(base_offset=offset, last_offset_delta=header.next_offset - offset - 1)
    bare = empty_batch(rest, with_producer=False)
    return memoryview(b"".join((bare, view[HEADER_BYTES:])))
