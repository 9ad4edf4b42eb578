"""Fetches that wait for records. They are kept track of for one reason: a node that is about to
stop answers them at once with what there is, instead of letting their clients wait it out."""

import asyncio


class ParkedFetches:
    __slots__ = ("_futures", "is_draining")

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[None]] = set()
        self.is_draining = False

    def __len__(self) -> int:
        return len(self._futures)

    async def wait(self, future: asyncio.Future[None]) -> None:
        """Until ``future`` is done, or the node drains."""
        if self.is_draining:
            return
        self._futures.add(future)
        try:
            await future
        finally:
            self._futures.discard(future)

    def drain(self) -> None:
        self.is_draining = True
        for future in self._futures:
            if not future.done():
                future.set_result(None)
