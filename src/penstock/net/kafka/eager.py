"""A coroutine whose first step runs at once instead of in the next iteration of the event loop.

Starting a task for it would cost more than many requests do, and a later task may overtake it. An
``EagerCoroutine`` has run up to its first wait when it is created; often that is its end. The first
step runs outside of any task, so it must not need one (as ``asyncio.timeout`` does)."""

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class EagerCoroutine(Generic[T]):
    """A coroutine that has begun. An exception of its first step is raised by the constructor.
    Unless ``is_done`` is set, it must be awaited once."""

    __slots__ = ("_awaited", "_coroutine", "is_done", "result")

    result: T

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self.is_done = False
        try:
            self._awaited = coroutine.send(None)
        except StopIteration as end:
            self.is_done = True
            self.result = end.value

    def __await__(self) -> Generator[Any, Any, T]:
        if self.is_done:
            return self.result
        coroutine = self._coroutine
        # Any task may await the future that the first step yielded: a future calls the task that
        # received it last.
        awaited = self._awaited
        try:
            while True:
                try:
                    value = yield awaited
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:
                    awaited = coroutine.throw(error)
                else:
                    awaited = coroutine.send(value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


async def rest_of(started: EagerCoroutine[T]) -> T:
    return await started
