"""Decompresses the records of large batches in threads.

Batches of up to 1 MiB are decompressed at once, which takes about a millisecond. Larger ones are
decompressed in a thread: two at a time, and one at a time for each tenant.
"""

import asyncio
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from penstock.model.limits import KIB, MIB
from penstock.record.batch import BatchHeader
from penstock.record.compression import Codec, TooLarge
from penstock.record.record import RECORDS_BYTES_MAX, records_blob, records_view

QUICK_BYTES_MAX: Final = MIB  # after decompression
QUICK_PACKED_BYTES_MAX: Final = 256 * KIB
THREADS_MAX: Final = 2
# A semaphore for the threads and a lock for each tenant, by event loop.
_Waits = tuple[asyncio.Semaphore, WeakValueDictionary[str, asyncio.Lock]]
_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Waits] = WeakKeyDictionary()


def unpacked_now(batch: bytes, header: BatchHeader) -> bytes | None:
    """Return the decompressed records, or None if that would take more than about a millisecond."""
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
    blob = unpacked_now(batch, header)
    if blob is not None:
        if len(blob) > bytes_max:
            raise TooLarge(bytes_max)
        return blob
    loop = asyncio.get_running_loop()
    if loop not in _LOOPS:
        _LOOPS[loop] = asyncio.Semaphore(THREADS_MAX), WeakValueDictionary()
    slots, turns = _LOOPS[loop]
    turn = turns.setdefault(tenant, asyncio.Lock())
    async with turn, slots:
        return await asyncio.to_thread(records_view, batch, header, bytes_max=bytes_max)
