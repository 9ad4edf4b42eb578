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

QUICK_BYTES_MAX: Final = MIB  # decompressed
QUICK_PACKED_BYTES_MAX: Final = 256 * KIB
THREADS_MAX: Final = 2


def unpacked_now(batch: bytes, header: BatchHeader) -> bytes | None:
    """None if that would take more than about a millisecond. Raises MalformedBatch."""
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
    """Raises MalformedBatch, or TooLarge for more than ``bytes_max`` bytes."""
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
