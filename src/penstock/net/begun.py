"""A coroutine whose first step is taken on the spot.

A task begins in the next turn of the loop, which costs more than many a request does, and what is
begun later may be overtaken. A ``Begun`` has gone as far as it gets without waiting when it is
made; often that is the end. Whoever awaits it afterwards goes on from there.

The first step runs outside of any task: what asks for its own task (``asyncio.timeout``) must not
be in it.
"""

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Begun(Generic[T]):
    """To be awaited once, unless it is done: then ``result`` is there at once. What the first step
    raises is raised here."""

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
        # A future that was given out by a step may be handed on to any task: it is that task which
        # asks it for a call, when it gets it.
        awaited = self._awaited
        while True:
            try:
                value = yield awaited
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:
                try:
                    awaited = coroutine.throw(error)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
            else:
                try:
                    awaited = coroutine.send(value)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]


async def rest_of(begun: Begun[T]) -> T:
    """For a task."""
    return await begun
