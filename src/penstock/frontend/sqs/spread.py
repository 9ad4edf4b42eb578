"""A batch call touches several partitions: one backend call for each, results back in the order of
the entries. The calls run side by side, because each of them waits for its own disk."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from penstock.model.errors import PenstockError

T = TypeVar("T")
R = TypeVar("R")

Parts = Mapping[int, Sequence[tuple[int, T]]]  # partition → (index of the entry, its value)


async def spread(
    parts: Parts[T],
    run: Callable[[int, Sequence[T]], Coroutine[Any, Any, Sequence[R]]],
    *,
    name: str,
) -> dict[int, R | PenstockError]:
    """Results by entry index. A partition that fails takes only its own entries with it; when no
    partition worked the call as a whole has failed, and says so by raising: a client's own retry
    then applies."""
    results: dict[int, R | PenstockError] = {}
    failures: list[PenstockError] = []

    async def one(partition: int, entries: Sequence[tuple[int, T]]) -> None:
        try:
            answers = await run(partition, [value for _, value in entries])
        except PenstockError as error:
            failures.append(error)
            results.update((index, error) for index, _ in entries)
            return
        assert len(answers) == len(entries), "one result per entry"
        results.update((index, answer) for (index, _), answer in zip(entries, answers, strict=True))

    if len(parts) == 1:
        [(partition, entries)] = parts.items()
        await one(partition, entries)
    else:
        async with asyncio.TaskGroup() as tasks:
            for partition, entries in parts.items():
                tasks.create_task(one(partition, entries), name=f"{name} {partition}")
    if failures and len(failures) == len(parts):
        raise failures[0]
    return results
