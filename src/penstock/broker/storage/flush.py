"""The appends of one turn of the event loop, and the callers that wait for them."""

import asyncio

from penstock.model.errors import PenstockError


class Stage:
    """One stage of a flush. Each caller waits for a separate future: a cancelled task cancels the
    future it awaits, which must not reach the others."""

    # Defaults of the class: every send makes three stages and waits for one of them.
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
        """End the stage, with success or an error. Only the first call counts."""
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
    __slots__ = ("committed", "end_offset", "sent", "size_bytes", "started", "written")

    def __init__(self) -> None:
        self.started = 0.0
        self.size_bytes = 0
        self.end_offset = 0  # of the log after it
        self.sent = Stage()  # the messages are committed
        # The events are in the log: enough for a lease that may be repeated, as long as no other
        # node could lease the record while this one is running.
        self.written = Stage()
        self.committed = Stage()  # the events are committed

    def settle(self, error: PenstockError | None = None) -> None:
        """End all stages; with an error the outcome is unknown."""
        self.sent.settle(error)
        self.written.settle(error)
        self.committed.settle(error)
