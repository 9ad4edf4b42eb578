from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.topics.catalog import MoveTasks
from penstock.model.ports import MoveTask


def make_task(number: int, *, source: str = "arn:dead", status: str = "COMPLETED") -> MoveTask:
    return MoveTask(
        task_id=f"{source}-{number}",
        source_arn=source,
        destination_arn=None,
        rate_per_s=None,
        status=status,
        started_at_ms=number,
    )


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    yield store
    await store.close()


@pytest.fixture
async def tasks(store: SqliteStore) -> AsyncIterator[MoveTasks]:
    tasks = MoveTasks(store, per_source_max=3)
    await tasks.start()
    yield tasks
    await tasks.stop()


async def test_tasks_are_listed_newest_first_per_source(tasks: MoveTasks) -> None:
    for number in (2, 1, 3):
        await tasks.put(make_task(number))
    await tasks.put(make_task(9, source="arn:other"))
    assert [task.started_at_ms for task in tasks.list("arn:dead")] == [3, 2, 1]
    assert len(tasks.list("arn:other")) == 1
    assert tasks.list("arn:none") == []


async def test_a_task_is_replaced_by_its_newer_state(tasks: MoveTasks) -> None:
    task = make_task(1, status="RUNNING")
    await tasks.put(task)
    await tasks.put(msgspec.structs.replace(task, moved=5))
    assert [t.moved for t in tasks.list("arn:dead")] == [5]
    found = tasks.get(task.task_id)
    assert found is not None
    assert found.moved == 5
    assert tasks.get("other") is None


async def test_history_is_bounded_but_unfinished_tasks_stay(tasks: MoveTasks) -> None:
    await tasks.put(make_task(0, status="RUNNING"))
    for number in range(1, 8):
        await tasks.put(make_task(number))
    assert [task.started_at_ms for task in tasks.list("arn:dead")] == [7, 6, 5, 0]


async def test_a_restart_finds_what_was_running(store: SqliteStore, tasks: MoveTasks) -> None:
    await tasks.put(make_task(1, status="RUNNING"))
    await tasks.put(make_task(2, status="CANCELLING"))
    await tasks.put(make_task(3))
    await tasks.stop()
    again = MoveTasks(store)
    await again.start()
    assert sorted(task.started_at_ms for task in again.unfinished()) == [1, 2]
    assert again.list("arn:dead") == tasks.list("arn:dead")
    await again.stop()


async def test_a_deleted_task_is_gone(tasks: MoveTasks) -> None:
    await tasks.put(make_task(1))
    await tasks.delete("arn:dead-1")
    await tasks.delete("arn:dead-1")
    assert tasks.list("arn:dead") == []
    assert tasks.get("arn:dead-1") is None
