"""A log that is found damaged, whenever that is: it neither leads nor counts, and is made anew."""

import logging
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest
from tests.harness.damage import flip_bit
from tests.unit.broker.replicas.stage import Cluster, ClusterNode, cluster, settles, until

from penstock.broker.context.context import BrokerContext, open_log
from penstock.broker.replicas import damaged_replicas, replicators
from penstock.broker.replicas.replicator import Replicator
from penstock.log.log import Log
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.calls import Ack, Fetch, Lease
from penstock.model.errors import Damaged
from penstock.model.message import Claim
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Topic
from penstock.replication.election import Standing, recover
from penstock.replication.replica import Role

FIRST_SEGMENT = f"{0:020d}.log"
FIRST_BATCH = 80  # a byte of its records


async def test_who_shall_lead_and_finds_damage_resigns_and_is_made_anew(tmp_path: Path) -> None:
    """Or it would give out what was deleted: how that came about stands behind the damage."""
    async with cluster(tmp_path) as on:
        topic, key = await on.topic(in_sync_min=3)
        await _filled(on, topic, key)
        second = on.nodes[2]
        second.is_cut = True  # it has followed nobody before it is to lead, so has read nothing
        await _damaged_while_stopped(second, key)
        assert on.row(key).in_sync == {1, 2, 3}
        await on.elect(key, 2, is_awaited=False)
        await until(lambda: on.row(key).lost == {2} and on.row(key).leader == -1)
        second.is_cut = False
        await on.elect(key, 3)
        assert await _bodies(on, topic, 3) == [b"the last one"]
        await _is_whole_again(on, key)
        await on.elect(key, 2)


async def test_who_follows_and_finds_damage_is_made_anew_and_its_leader_stays(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await _filled(on, topic, key)
        epoch = on.row(key).epoch
        await _damaged_while_stopped(on.nodes[2], key)
        await until(lambda: on.row(key).epoch > epoch)
        assert on.row(key).leader == 1
        await _is_whole_again(on, key)
        assert await _bodies(on, topic, 1) == [b"the last one"]
        await on.elect(key, 2)


async def test_damage_that_is_found_while_leading_ends_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await _filled(on, topic, key)
        _find_damage(on.nodes[1].replica(key))
        await until(lambda: on.row(key).lost == {1} and on.row(key).leader == -1)
        await on.elect(key, 2)
        assert await _bodies(on, topic, 2) == [b"the last one"]
        await _is_whole_again(on, key)


async def test_damage_that_is_found_at_the_start_is_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await _filled(on, topic, key)
        second = on.nodes[2]
        log = second.replica(key).log
        await second.kill()
        flip_bit(log.folder / FIRST_SEGMENT, FIRST_BATCH)
        with caplog.at_level(logging.ERROR):
            await second.start()
        assert "damage found in log" in caplog.messages
        await _is_whole_again(on, key)
        assert not second.replica(key).log.damage
        await on.elect(key, 2)
        assert await _bodies(on, topic, 2) == [b"the last one"]


async def test_who_is_the_last_to_have_anything_goes_on_with_its_damage_until_others_have_all(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic(in_sync_min=1)
        await _filled(on, topic, key)
        for number in (2, 3):
            await on.nodes[number].kill()
        await until(lambda: on.row(key).in_sync == {1})
        first = on.nodes[1]
        await _damaged_while_stopped(first, key)
        await on.elect(key, 1)
        assert (on.row(key).leader, on.row(key).lost) == (1, frozenset())
        partition = first.replica(key).partition
        assert partition is not None
        assert partition.damage is not None
        await on.nodes[2].start()  # which has all of it, as soon as the leader has compared
        await until(lambda: on.row(key).lost == {1} and on.row(key).leader == -1)
        await on.elect(key, 2)
        await on.nodes[3].start()
        await _is_whole_again(on, key)
        assert await _bodies(on, topic, 2) == [b"the last one"]


async def test_what_was_put_aside_counts_again_when_the_others_have_lost_something(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await _filled(on, topic, key)
        first = on.nodes[1]
        end = first.replica(key).log.end_offset
        _find_damage(first.replica(key))
        await until(lambda: on.row(key).lost == {1} and on.row(key).leader == -1)
        assert first.replica(key).replica.role is Role.HALTED
        for number in (2, 3):
            await on.nodes[number].kill()
            shutil.rmtree(on.nodes[number].folder / "topics")
            await on.nodes[number].start()
        await until(lambda: on.row(key).lost == {1, 2, 3})
        await until(lambda: _is_waiting(first, key))
        view = first.view.rows[key]
        alive = {number: node.membership.incarnation for number, node in on.nodes.items()}
        standings = {number: Standing(-1, 0) for number in (2, 3)}
        replica = first.replica(key).replica
        standings[1] = Standing(replica.history.last, replica.end_offset)
        assert standings[1] == (1, end)
        change = recover(view, alive, standings)
        assert change is not None
        await first.view.propose(key, change)
        await until(lambda: on.is_led(first, key))
        assert on.row(key).leader == 1


@pytest.mark.parametrize("number", [1, 2])
async def test_what_reading_over_a_log_finds_is_mended(tmp_path: Path, number: int) -> None:
    """Of a leader, and of a follower that has no reason to read so far back."""
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await _filled(on, topic, key)
        node = on.nodes[number]
        log = node.replica(key).log
        flip_bit(log.folder / FIRST_SEGMENT, FIRST_BATCH)
        epoch = on.row(key).epoch
        scrubber = node.broker.partitions.scrubber
        await scrubber.round()
        assert scrubber.damage_count == 1
        await until(lambda: on.row(key).epoch > epoch)
        if number == 1:
            await until(lambda: on.row(key).leader == -1)
            await on.elect(key, 3)
        await _is_whole_again(on, key)
        assert await _bodies(on, topic, on.row(key).leader) == [b"the last one"]
        await scrubber.round()
        assert (scrubber.damage_count, scrubber.round_count) == (1, 2)


async def test_a_node_taken_for_dead_while_a_copy_is_emptied_opens_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registering anew it looks at all its logs, and this one is not there to be looked at."""
    may_remove = threading.Event()
    remove, opened = replicators._remove_folder, Counter[Path]()

    def remove_late(folder: Path) -> None:
        assert may_remove.wait(60)
        remove(folder)

    def count_opened(topic: Topic, index: int, folder: Path, context: BrokerContext) -> Log:
        opened[folder] += 1
        return open_log(topic, index, folder, context)

    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await _filled(on, topic, key)
        monkeypatch.setattr(replicators, "_remove_folder", remove_late)
        monkeypatch.setattr(damaged_replicas, "open_log", count_opened)
        second = on.nodes[2]
        flip_bit(second.replica(key).log.folder / FIRST_SEGMENT, FIRST_BATCH)
        await second.broker.partitions.scrubber.round()
        await until(lambda: second.replicators.find(key) is None)
        incarnation = second.membership.incarnation
        await on.store.revoke(second.membership.lease)
        await until(lambda: second.replicators._is_registering)
        may_remove.set()
        await _is_whole_again(on, key)
        assert second.membership.incarnation > incarnation
        assert list(opened.values()) == [1]
        await on.elect(key, 2)
        assert await _bodies(on, topic, 2) == [b"the last one"]


async def _filled(on: Cluster, topic: Topic, key: PartitionKey) -> None:
    """Ten messages that were received and deleted, one that was not."""
    await settles(on.sent(1, topic, *(f"m{n}" for n in range(10))))
    broker = on.nodes[1].broker
    for delivery in await broker.call(Lease(topic, LeaseRequest(count=10))):
        claim = Claim(0, delivery.record.offset, delivery.lease_seq)
        assert list(await broker.call(Ack(topic, 0, [claim]))) == [None]
    await settles(on.sent(1, topic, "the last one"))
    await on.alike(key)


async def _damaged_while_stopped(node: ClusterNode, key: PartitionKey) -> None:
    """In the middle of what was on disk, where opening it does not look."""
    log = node.replica(key).log
    size = log.size_bytes
    await node.stop()
    for checkpoint in log.folder.glob("*.checkpoint"):
        checkpoint.unlink()  # or nobody would read the old part
    flip_bit(log.folder / FIRST_SEGMENT, size // 2)
    await node.start()


def _find_damage(leading: Replicator) -> None:
    log = leading.log
    log.drop_batch_cache()  # what is in memory is whole
    flip_bit(log.folder / FIRST_SEGMENT, FIRST_BATCH)
    assert leading.partition is not None
    with pytest.raises(Damaged):
        leading.partition.fetch(Fetch(leading.topic, 0, 0, 1 << 20, is_committed=True))


async def _bodies(on: Cluster, topic: Topic, node: int) -> list[bytes]:
    request = LeaseRequest(count=10, wait_ms=8_000)
    found = await settles(on.nodes[node].broker.call(Lease(topic, request)))
    return [one.record.message.body for one in found]  # type: ignore[attr-defined]


async def _is_whole_again(on: Cluster, key: PartitionKey) -> None:
    await until(lambda: on.row(key).in_sync == {1, 2, 3} and not on.row(key).lost)
    await on.alike(key)


def _is_waiting(node: ClusterNode, key: PartitionKey) -> bool:
    found = node.replicators.find(key)
    return found is not None and found.replica.role is Role.WAITING
