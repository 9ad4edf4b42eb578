"""The interval of a periodic job, which may be changed while the job waits."""

import asyncio


class Interval:
    def __init__(self, ms: int) -> None:
        self._ms = ms
        self._changed = asyncio.Event()

    def change(self, ms: int) -> None:
        if ms != self._ms:
            self._ms = ms
            self._changed.set()

    async def pass_by(self) -> None:
        """Wait for one interval from the call on. A change of its length applies at once."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while (left := since + self._ms / 1_000 - loop.time()) > 0:
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                pass
