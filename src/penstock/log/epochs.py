"""Which epochs a log holds and where each begins, without reading all of it.

The batches' headers say it, and few of them have to be read (``log/headers.py``). A checkpoint
saves even those: it holds what was found up to some offset, so that only what came later is looked
at. It is never needed and never trusted blindly: ``Log.truncate`` and ``Log.restart`` remove it;
after a crash that took the end of the log, this holds: no leader resumes an epoch, so a log that
has, at the offset in front of where the checkpoint ends, a batch of the very epoch that the
checkpoint ends with has the same history up to there. If it has not, or the checkpoint is missing,
damaged or speaks of offsets that the log does not have, everything is found from the headers.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from penstock.log.headers import Epochs
from penstock.log.layout import EPOCHS_CHECKPOINT
from penstock.log.log import Log

CHECKPOINT_VERSION = 1


class Saved(msgspec.Struct, array_like=True, frozen=True):
    """The epochs of everything below ``offset``."""

    version: int
    offset: int
    entries: list[tuple[int, int]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Saved).decode


def write_epochs(log: Log, entries: Sequence[tuple[int, int]], offset: int) -> None:
    """Save what ``read_epochs`` would find below ``offset``. Durable when it returns; safe in a
    thread, one at a time."""
    saved = Saved(CHECKPOINT_VERSION, offset, [entry for entry in entries if entry[1] < offset])
    log.write_checkpoint(EPOCHS_CHECKPOINT, _encode(saved))


def read_epochs(log: Log) -> Epochs:
    """(epoch, first offset) in the log's order; none of an empty log. The first one begins where
    the log does."""
    start, end = log.start_offset, log.end_offset
    if start == end:
        return []
    saved = _read_saved(log)
    if saved is not None and start < saved.offset <= end and saved.entries[0][1] <= start:
        last = saved.entries[-1][0], saved.offset - 1
        since = log.epochs(saved.offset - 1)
        if since and since[0] == last:
            return _from(start, saved.entries) + since[1:]
    return log.epochs(start)


def _read_saved(log: Log) -> Saved | None:
    """The checkpoint, if it makes sense."""
    data = log.read_checkpoint(EPOCHS_CHECKPOINT)
    if data is None:
        return None
    try:
        saved = _decode(data)
    except msgspec.MsgspecError:
        return None
    entries = [*saved.entries, (2**63, saved.offset)]
    is_growing = all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(entries))
    is_good = saved.version == CHECKPOINT_VERSION and saved.entries and is_growing
    return saved if is_good else None


def _from(start: int, entries: Epochs) -> Epochs:
    """Without what retention has dropped; the epoch that it ended in begins with the log."""
    found = [(epoch, max(offset, start)) for epoch, offset in entries]
    while len(found) > 1 and found[1][1] == start:
        del found[0]
    return found
