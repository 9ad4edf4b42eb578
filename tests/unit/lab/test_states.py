"""Copies are folded by the product's own code, from wherever each can begin, and must agree."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.lab.states import ComparedStates, State, compare_states, difference
from tests.unit.broker.stage import HandClock, claim, message, on_stage

from penstock.model.calls import Ack, Append, Extend, Lease
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Topic


async def queue_folder(folder: Path, *, is_acked: bool = True, fifo: bool = False) -> Topic:
    """A queue that took three messages and gave out two, of which one came to an end. Everything
    that is drawn by chance is drawn before."""
    async with on_stage(folder, HandClock()) as stage:
        topic = await stage.topic(fifo=fifo)
        group = {"group": "g", "dedup_id": "d"} if fifo else {}
        for number in range(3):
            await stage.broker.call(Append(topic, 0, [message(str(number), **group)]))
        (one, *_) = await stage.broker.call(Lease(topic, LeaseRequest(count=2)))
        if is_acked:
            await stage.broker.call(Ack(topic, 0, [claim(one)]))
        else:
            await stage.broker.call(Extend(topic, 0, [(claim(one), 0)]))
        return topic


def folders(topic: Topic, *nodes: Path) -> dict[str, dict[str, Path]]:
    copies = {
        f"n{number}": node / "topics" / topic.topic_id / "0" for number, node in enumerate(nodes, 1)
    }
    return {f"{topic.topic_id}/0": copies}


async def compared(topic: Topic, *nodes: Path, topics: list[Topic] | None = None) -> ComparedStates:
    """In a thread, for it runs a loop of its own."""
    given = [topic] if topics is None else topics
    return await asyncio.to_thread(compare_states, folders(topic, *nodes), given)


@pytest.mark.parametrize("fifo", [False, True])
async def test_copies_agree_with_and_without_a_checkpoint(tmp_path: Path, fifo: bool) -> None:
    topic = await queue_folder(tmp_path / "one", fifo=fifo)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (folder,) = folders(topic, tmp_path / "two")[f"{topic.topic_id}/0"].values()
    gone = list(folder.glob("cursor.*"))
    for path in gone:
        path.unlink()
    assert gone, "a clean stop leaves a checkpoint"
    found = await compared(topic, tmp_path / "one", tmp_path / "two")
    assert found.differences == []
    assert (found.partitions, found.folds) == (1, 3)


async def test_a_copy_that_comes_to_something_else_is_found(tmp_path: Path) -> None:
    topic = await queue_folder(tmp_path / "one")
    other = await queue_folder(tmp_path / "two", is_acked=False)
    (tmp_path / "two/topics" / other.topic_id).rename(tmp_path / "two/topics" / topic.topic_id)
    found = await compared(topic, tmp_path / "one", tmp_path / "two")
    assert len(found.differences) == 1


async def test_a_copy_that_ends_before_another_ones_checkpoint_is_found(tmp_path: Path) -> None:
    topic = await queue_folder(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (folder,) = folders(topic, tmp_path / "two")[f"{topic.topic_id}/0"].values()
    segment = max(folder.glob("*.log"))
    segment.write_bytes(segment.read_bytes().rstrip(b"\0")[:-1])
    for path in folder.iterdir():
        if path.suffix != ".log":
            path.unlink()
    found = await compared(topic, tmp_path / "one", tmp_path / "two")
    assert len(found.differences) == 1
    assert "has a checkpoint at" in found.differences[0]


async def test_a_tail_that_was_not_committed_does_not_count(tmp_path: Path) -> None:
    async with on_stage(tmp_path / "one", HandClock()) as stage:
        topic = await stage.topic()
        await stage.broker.call(Append(topic, 0, [message("0")]))
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        await stage.broker.call(Append(topic, 0, [message("1")]))
    both = folders(topic, tmp_path / "one", tmp_path / "two")[f"{topic.topic_id}/0"].values()
    for folder in both:
        for path in folder.glob("cursor.*"):
            path.unlink()
    found = await compared(topic, tmp_path / "one", tmp_path / "two")
    assert found.differences == []
    assert (found.partitions, found.folds) == (1, 2)


async def test_what_belongs_to_no_topic_has_no_state(tmp_path: Path) -> None:
    topic = await queue_folder(tmp_path / "one")
    found = await compared(topic, tmp_path / "one", topics=[])
    assert (found.partitions, found.differences) == (0, [])


def test_a_reading_that_lacks_the_beginning_is_compared_by_its_extent() -> None:
    whole, other = State(((5, 2),), ("a",)), State(((5, 2),), ("b",))
    partly = State(((5, 2),), None)
    assert difference({"n1": partly, "n2": whole, "n3": whole}) is None
    assert difference({"n1": partly, "n2": whole, "n3": other}) is not None
    assert difference({"n1": whole, "n2": State(((5, 3),), None)}) is not None
