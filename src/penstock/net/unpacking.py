"""Records of large batches, decompressed outside of the event loop.

Batches that come to at most 1 MiB are decompressed at once: that takes about a millisecond. Others
are decompressed in a thread, two at a time in all and one at a time for each tenant, so that a
tenant with many large batches waits for itself.
"""

import asyncio
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from penstock.model.limits import KIB, MIB
from penstock.record.batch import BatchHeader
from penstock.record.compression import Codec, TooLarge
from penstock.record.record import RECORDS_BYTES_MAX, records_blob, records_view

QUICK_BYTES_MAX: Final = MIB  # decompressed
QUICK_PACKED_BYTES_MAX: Final = 256 * KIB
THREADS_MAX: Final = 2


def unpacked_now(batch: bytes, header: BatchHeader) -> bytes | None:
    """The records of a batch, if that takes no more than about a millisecond; None if it takes
    longer. Raises MalformedBatch."""
    if header.codec == Codec.NONE:
        return records_blob(batch, header)
    if len(batch) > QUICK_PACKED_BYTES_MAX:
        return None
    try:
        return records_blob(batch, header, bytes_max=QUICK_BYTES_MAX)
    except TooLarge:
        return None


async def unpacked(
    batch: bytes, header: BatchHeader, *, tenant: str, bytes_max: int = RECORDS_BYTES_MAX
) -> bytes | memoryview:
    """The records of a batch, however long it takes. Raises MalformedBatch, or TooLarge for more
    than ``bytes_max`` bytes."""
    blob = unpacked_now(batch, header)
    if blob is not None:
        if len(blob) > bytes_max:
            raise TooLarge(bytes_max)
        return blob
    return await _unpacker().unpack(batch, header, tenant, bytes_max)


class _Unpacker:
    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(THREADS_MAX)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by tenant

    async def unpack(
        self, batch: bytes, header: BatchHeader, tenant: str, bytes_max: int
    ) -> bytes | memoryview:
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        async with turn, self._slots:
            return await asyncio.to_thread(records_view, batch, header, bytes_max=bytes_max)


def _unpacker() -> _Unpacker:
    loop = asyncio.get_running_loop()
    found = _UNPACKERS.get(loop)
    if found is None:
        found = _UNPACKERS[loop] = _Unpacker()
    return found


_UNPACKERS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Unpacker] = WeakKeyDictionary()
