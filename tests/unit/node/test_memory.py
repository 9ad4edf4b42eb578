"""After a topic is deleted, circles of its objects are freed, also those from before the freeze."""

import asyncio
import gc
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.model.topic import Kind, Topic
from penstock.node.process.resources import MemoryKeeper

SETTLE_S = 0.01


class Circle:
    """Refers to itself, as a partition and its journal do."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def no_collector() -> Iterator[None]:
    """The collector runs only when it is told to, as on a quiet server."""
    gc.disable()
    gc.unfreeze()
    yield
    gc.freeze()  # as tests/conftest.py does
    gc.enable()


def topic(topic_id: str) -> Topic:
    return Topic(
        topic_id=topic_id,
        account="000000000000",
        region="us-east-1",
        name=topic_id,
        kind=Kind.STREAM,
        partition_count=1,
        created_at_ms=0,
        modified_at_ms=0,
        receipt_key=b"",
    )


async def is_freed(circle: "weakref.ref[Circle]") -> bool:
    """A collection may have to wait for a hundred times as long as the one before it took."""
    async with asyncio.timeout(60):
        while circle() is not None:
            await asyncio.sleep(SETTLE_S)
    return True


@pytest.mark.usefixtures("no_collector")
async def test_what_belonged_to_a_deleted_topic_is_freed() -> None:
    with ThreadPoolExecutor(1) as pool:
        keeper = MemoryKeeper(pool, settle_s=SETTLE_S, cpu=lambda: 0.0)
        old = weakref.ref(Circle())
        keeper.freeze([topic("old")])
        assert old() is None, "freezing begins with a collection"
        new = weakref.ref(Circle())
        keeper.topic_changed(None, topic("new"))
        keeper.topic_changed(topic("new"), topic("new"))
        await asyncio.sleep(5 * SETTLE_S)
        assert new() is not None, "nothing was deleted"
        keeper.topic_changed(topic("new"), None)
        assert await is_freed(new)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.slow
async def test_what_was_there_at_the_start_is_freed_with_its_topic() -> None:
    with ThreadPoolExecutor(1) as pool:
        keeper = MemoryKeeper(pool, settle_s=SETTLE_S, cpu=lambda: 0.0)
        held = Circle()
        circle = weakref.ref(held)
        keeper.freeze([topic("old")])
        del held
        keeper.topic_changed(topic("new"), None)
        await asyncio.sleep(5 * SETTLE_S)
        assert circle() is not None, "frozen, and its topic is still there"
        keeper.topic_changed(topic("old"), None)
        assert await is_freed(circle)
        assert gc.get_freeze_count() > 0


@pytest.mark.usefixtures("no_collector")
@pytest.mark.slow
async def test_a_stopped_keeper_does_nothing() -> None:
    with ThreadPoolExecutor(1) as pool:
        keeper = MemoryKeeper(pool, settle_s=SETTLE_S, cpu=lambda: 0.0)
        circle = weakref.ref(Circle())
        keeper.topic_changed(topic("a"), None)
        keeper.stop()
        await asyncio.sleep(5 * SETTLE_S)
        assert circle() is not None
        gc.collect()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.slow
async def test_a_busy_node_is_not_stopped_for_a_collection() -> None:
    """All of one core until it is told to be quiet."""
    is_busy = True
    used = 0.0

    def cpu() -> float:
        nonlocal used
        used += SETTLE_S if is_busy else 0
        return used

    with ThreadPoolExecutor(1) as pool:
        keeper = MemoryKeeper(pool, settle_s=SETTLE_S, cpu=cpu)
        circle = weakref.ref(Circle())
        keeper.topic_changed(topic("a"), None)
        await asyncio.sleep(10 * SETTLE_S)
        assert circle() is not None, "the node is busy"
        is_busy = False
        assert await is_freed(circle)


@pytest.mark.usefixtures("no_collector")
async def test_collections_take_at_most_one_percent_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collect_s, begun = 0.02, list[float]()

    def collect() -> None:
        begun.append(time.monotonic())
        time.sleep(collect_s)

    monkeypatch.setattr(gc, "collect", collect)
    with ThreadPoolExecutor(1) as pool:
        keeper = MemoryKeeper(pool, settle_s=SETTLE_S, cpu=lambda: 0.0)
        async with asyncio.timeout(20):
            while len(begun) < 2:
                keeper.topic_changed(topic("a"), None)
                await asyncio.sleep(SETTLE_S)
        keeper.stop()
    assert begun[1] - begun[0] >= 100 * collect_s
