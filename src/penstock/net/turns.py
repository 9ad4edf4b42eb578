"""Long work in the event loop, cut into turns so that other requests are served in between."""

import asyncio
import hashlib
import time
from collections.abc import Generator
from typing import Final, TypeVar

TURN_SECONDS: Final = 0.005
HASHED_BYTES: Final = 256 * 1_024  # at a time: about a millisecond

T = TypeVar("T")


async def in_turns(steps: Generator[None, None, T]) -> T:
    """Run a generator to its end and return its result. The generator yields None at least every
    few milliseconds; other work of the loop is done whenever ``TURN_SECONDS`` have passed."""
    since = time.perf_counter()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if time.perf_counter() - since >= TURN_SECONDS:
            await asyncio.sleep(0)
            since = time.perf_counter()


def hash_in_steps(data: bytes) -> Generator[None, None, str]:
    """The SHA-256 of ``data`` in hexadecimal digits."""
    begun = hashlib.sha256()
    with memoryview(data) as view:
        for start in range(0, len(data), HASHED_BYTES):
            begun.update(view[start : start + HASHED_BYTES])
            yield None
    return begun.hexdigest()
