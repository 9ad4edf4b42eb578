"""The appends of one iteration of the event loop, and the callers that wait for them."""

import asyncio

from penstock.model.errors import PenstockError


class Stage:
    """One stage of a flush that callers can wait for. Each caller gets a future of its own, because
    cancelling a task also cancels the future that it awaits."""

    # Class attributes as defaults, because every send creates three stages and waits for one.
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
        """End the stage, with success or an error. Later calls have no effect."""
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
        self.end_offset = 0  # end offset of the log after this flush
        self.sent = Stage()  # the messages are committed
        # The events are written. That is enough for a lease that may be repeated, because no other
        # node can lease the record while this node is running.
        self.written = Stage()
        self.committed = Stage()  # the events are committed

    def settle(self, error: PenstockError | None = None) -> None:
        self.sent.settle(error)
        self.written.settle(error)
        self.committed.settle(error)
