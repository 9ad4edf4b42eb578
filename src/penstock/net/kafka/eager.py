"""A coroutine whose first step runs at once instead of in the next turn of the event loop.

A task starts in the next turn, which costs more than many requests, and a later one may overtake
it. An ``EagerCoroutine`` has run up to its first wait when it is created; often that is its end.
The first step runs outside of any task, so it must not need one (``asyncio.timeout`` does).
"""

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class EagerCoroutine(Generic[T]):
    """Raises what the first step raises. If not ``is_done``, await it once."""

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
