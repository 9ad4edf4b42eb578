"""The epochs of a log and where each begins, found without reading the whole log, from a few batch
headers and a checkpoint, which is always checked. ``Log.truncate`` and ``Log.restart`` remove it.
After a crash that took the end of the log: no leader resumes an epoch, so if the log's last batch
before the checkpoint's end has the checkpoint's last epoch, both have the same history up to there.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from penstock.log.log import Log
from penstock.log.storage.files import EPOCHS_CHECKPOINT
from penstock.log.storage.headers import Epochs

CHECKPOINT_VERSION = 1


class Saved(msgspec.Struct, array_like=True, frozen=True):
    version: int
    offset: int
    entries: list[tuple[int, int]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Saved).decode


def write_epochs(log: Log, entries: Sequence[tuple[int, int]], offset: int) -> None:
    """Save the epochs below ``offset``, durably. Safe in a thread, one at a time."""
    saved = Saved(CHECKPOINT_VERSION, offset, [entry for entry in entries if entry[1] < offset])
    log.write_checkpoint(EPOCHS_CHECKPOINT, _encode(saved))


def read_epochs(log: Log) -> Epochs:
    """Return (epoch, first offset) in order; the first epoch begins at the log's start."""
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
    """Drop epochs below ``start``; the epoch that holds ``start`` begins there."""
    found = [(epoch, max(offset, start)) for epoch, offset in entries]
    while len(found) > 1 and found[1][1] == start:
        del found[0]
    return found
