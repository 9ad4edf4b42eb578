"""Batches as a follower gets them from its leader, before they are written.

They come with their offsets and epochs and are stored as they are, so whatever is wrong with them
would be wrong for good. Everything a scan of the log would object to is objected to here: what is
appended can be opened again. Epochs and offsets are not covered by a batch's own CRC; that each
batch begins where the one before it ends, in no earlier epoch, is what holds them together on the
way.

Compaction leaves no gaps: where it has taken records out, a bare batch covers their offsets. But it
makes one of several such neighbours, so the first batch may begin below the end of a log that has
some of them already. The rest of its span is all that is missing.
"""

from pathlib import Path

from penstock.log.scan import header_fault
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

STRETCH_BYTES_MAX = 2**30  # one write takes it whole on every system we know


def verified(view: memoryview, *, offset: int, epoch: int, folder: Path) -> list[BatchHeader]:
    """The headers of batches that may follow ``offset`` and ``epoch``. Raises Damaged, which names
    the log and the byte among those given, when one of them may not."""
    headers: list[BatchHeader] = []
    make, unpack, at, limit = tuple.__new__, HEADER.unpack_from, 0, len(view)
    if limit > STRETCH_BYTES_MAX:
        raise Damaged(str(folder), 0, f"{limit} bytes at once")
    while at < limit:
        if limit - at < HEADER_BYTES:
            raise Damaged(str(folder), at, f"{limit - at} bytes, too few for a batch")
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
        reason = f"leader epoch {header.leader_epoch} behind epoch {epoch}"
    return reason or f"a batch cut short by {header.total_bytes - left_bytes} bytes"


def trimmed(view: memoryview, offset: int) -> memoryview:
    """The same without what the log has of the first batch already, if that is a bare one."""
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
