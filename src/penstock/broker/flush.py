"""The appends of one turn of the event loop, and the callers that wait for them."""

import asyncio

from penstock.model.errors import PenstockError


class Stage:
    """One thing that happens to a flush, and who waits for it. Each waiter has a future of its own:
    a cancelled task cancels the future it awaits, and that must not reach the others. Whoever asks
    after it has happened, as a parked receive does, is answered at once."""

    # Defaults of the class, for every send makes three stages and waits for one of them.
    is_past = False
    _error: BaseException | None = None
    _futures: list[asyncio.Future[None]] | None = None

    def wait(self) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        if not self.is_past:
            if self._futures is None:
                self._futures = []
            self._futures.append(future)
        elif self._error is None:
            future.set_result(None)
        else:
            future.set_exception(self._error)
        return future

    def settle(self, error: BaseException | None = None) -> None:
        """It has happened, or never will. Only the first call counts."""
        if self.is_past:
            return
        self.is_past = True
        self._error = error
        futures, self._futures = self._futures, None
        if futures is None:
            return
        for future in futures:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


class Flush:
    """The appends of one turn."""

    __slots__ = ("committed", "end_offset", "sent", "size_bytes", "started", "written")

    def __init__(self) -> None:
        self.started = 0.0
        self.size_bytes = 0
        self.end_offset = 0  # of the log behind it
        self.sent = Stage()  # the messages are committed
        # The events are in the log: enough for a lease that may be given twice, as long as there
        # is no other node that could give it while this one lives on.
        self.written = Stage()
        self.committed = Stage()  # the events are committed

    def succeed(self) -> None:
        self.sent.settle()
        self.written.settle()
        self.committed.settle()

    def fail(self, error: PenstockError) -> None:
        """Nobody knows what became of it."""
        self.sent.settle(error)
        self.written.settle(error)
        self.committed.settle(error)
